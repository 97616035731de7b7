"""`append_flow`, `update_flow` and sinks."""

from collections.abc import Callable
from typing import Any, cast, overload

from penstock._api.arguments import Arguments, ConfValues, F, checked_call, stand_in
from penstock._api.query import decorator, is_query_function, own_name, takes
from penstock._model.dataset import Sink
from penstock._model.flow import Flow, OutputMode


@checked_call
def append_flow(
    target: str,
    *,
    name: str | None = None,
    once: bool | None = None,
    spark_conf: ConfValues | None = None,
    comment: str | None = None,
    output_mode: str | None = None,
    depends_on: object = None,
    import_checkpoint: object = None,
) -> Callable[[F], F]:
    """Define a flow that adds the rows of a query to a streaming table or a sink.

    Args:
        target: Name of the streaming table or sink.
        name: Unique in the pipeline, one part; the name of the function if not given. It is the
            key of the flow's checkpoint: a renamed flow starts over.
        once: The function returns a batch DataFrame; it runs one time, and again only after a
            full refresh.
        spark_conf: Settings of the flow; they win over those of its target and the pipeline.
        comment: Free text.
        output_mode: `append`, `complete` or `update`; chosen by the query if not given.
        depends_on: Names of datasets that must be up to date before the flow starts.
        import_checkpoint: Not available yet.

    Returns:
        A decorator that returns the function itself.
    """
    arguments = Arguments("append_flow")
    arguments.unavailable("import_checkpoint", import_checkpoint)
    mode = arguments.choice("output_mode", output_mode, list(OutputMode))
    names = [depends_on] if isinstance(depends_on, str) else depends_on
    return _flow(
        arguments,
        target,
        name,
        spark_conf,
        comment,
        once=bool(arguments.flag("once", once)),
        output_mode=OutputMode(mode) if mode else None,
        depends_on=arguments.columns("depends_on", names, kind="dataset"),
    )


@checked_call
def update_flow(
    target: str,
    *,
    name: str | None = None,
    spark_conf: ConfValues | None = None,
    comment: str | None = None,
) -> Callable[[F], F]:
    """Define a flow that writes the rows that changed to a sink, in update mode.

    It runs in micro-batches, unless `pipelines.trigger` in `spark_conf` sets another trigger, such
    as `realTime=5 minutes`.

    Args:
        target: Name of the sink.
        name: Unique in the pipeline, one part; the name of the function if not given.
        spark_conf: Settings of the flow.
        comment: Free text.

    Returns:
        A decorator that returns the function itself.
    """
    arguments = Arguments("update_flow")
    return _flow(arguments, target, name, spark_conf, comment, output_mode=OutputMode.UPDATE)


def _flow(
    arguments: Arguments,
    target: object,
    name: object,
    spark_conf: object,
    comment: object,
    **properties: Any,
) -> Callable[[F], F]:
    properties["spark_conf"] = arguments.mapping("spark_conf", spark_conf)
    properties["comment"] = arguments.free_text("comment", comment)
    arguments.require(target=target)
    checked_target = arguments.dataset_name("target", target)
    checked_name = arguments.single_name("name", name)
    if checked_target is None:
        return cast("Callable[[F], F]", stand_in(arguments.registry, (target,)))
    known_target = checked_target

    def declare(application: Arguments, function: Callable[..., Any]) -> None:
        flow_name = checked_name or own_name(application, function, application.single_name)
        if not is_query_function(application, function) or flow_name is None:
            application.registry.excuse(function)
            return
        application.registry.add_flow(
            Flow(
                name=flow_name,
                target=known_target,
                function=function,
                origin=application.origin,
                **properties,
            )
        )

    return decorator(arguments, None, declare)


@checked_call
def create_sink(name: str, format: str, options: ConfValues | None = None) -> None:
    """Define a sink: a system other than the pipeline's tables that flows write to.

    Args:
        name: One part.
        format: Any Structured Streaming sink format.
        options: Passed to the writer; never shown.
    """
    arguments = Arguments("create_sink")
    arguments.require(name=name, format=format)
    checked_name = arguments.single_name("name", name)
    checked_format = arguments.text("format", format)
    checked_options = arguments.mapping("options", options)
    if checked_name is not None and checked_format is not None:
        arguments.registry.add_sink(
            Sink(
                name=checked_name,
                format=checked_format,
                options=checked_options,
                origin=arguments.origin,
            )
        )


@overload
def foreach_batch_sink(function: F) -> F: ...
@overload
def foreach_batch_sink(function: None = None, *, name: str | None = None) -> Callable[[F], F]: ...
@checked_call
def foreach_batch_sink(
    function: Callable[..., Any] | None = None, *, name: str | None = None
) -> Any:
    """Define a sink by a function that writes each micro-batch.

    The function takes a batch DataFrame and the id of the micro-batch. After a crash it may be
    called with the same rows and the same id again, so its writes must be idempotent. It is called
    on a thread of the flow. Tables and paths are resolved in it as in a query function.

    Args:
        function: Takes rows and batch id; what it returns is ignored.
        name: One part; the name of the function if not given.
    """
    call = Arguments("foreach_batch_sink")
    checked_name = call.single_name("name", name)

    def declare(arguments: Arguments, write: Callable[..., Any]) -> None:
        sink_name = checked_name or own_name(arguments, write, arguments.single_name)
        problem = "must take two arguments, the rows and the batch id"
        if takes(arguments, write, None, 0, problem=problem) and sink_name is not None:
            arguments.registry.add_sink(
                Sink(
                    name=sink_name,
                    format="foreach_batch",
                    origin=arguments.origin,
                    write_batch=write,
                )
            )

    return decorator(call, function, declare)
