"""Proposes the declared equivalent of a job, and reports statements without one."""

import ast
import json
import re
from itertools import count
from operator import attrgetter

from penstock._adopt.batches import Split, merge_keys, split_of
from penstock._adopt.excerpt import Body, NotRecognizedError, Program
from penstock._adopt.report import (
    AdoptedQuery,
    NotRecognized,
    Proposal,
    left_out,
    short_text,
)
from penstock._adopt.targets import (
    TABLE_FORMAT,
    Target,
    is_straight,
    read_datasets,
    statement_of,
    target_of,
)
from penstock._lint.bindings import Scope
from penstock._lint.job_queries import options, queries
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.registry import sink_of
from penstock.sinks.spark import ConsoleSink, NoopSink

_IMPORTS = ast.Import | ast.ImportFrom
_BLOCKS = ast.FunctionDef | ast.ClassDef
# Options that are declared in another form.
_NO_OPTIONS = ("checkpointlocation", "path", "queryname")
# Arguments of `start` and `toTable`; other keywords are options.
_ARGUMENTS = (*_NO_OPTIONS, "format", "outputmode", "partitionby", "tablename")


def propose(text: str, job: str) -> Proposal:
    """Rewrite a job; raises `SyntaxError` if it is not Python.

    Args:
        text: The source code of the job.
        job: Name of the job, for the first line.
    """
    failed: set[int] = set()
    while True:
        proposal = _Writer(Program(text), failed).proposal(job)
        now = {problem.line for problem in proposal.not_recognized if problem.is_query}
        if now <= failed:
            return proposal
        failed |= now  # they have no datasets that others could read


class _Writer:
    def __init__(self, program: Program, failed: set[int]) -> None:
        self._program = program
        self._failed = failed
        self._queries: list[AdoptedQuery] = []
        self._problems: list[NotRecognized] = []
        self._parts: list[str] = []
        self._names = {
            name
            for function, name in program.code.assignments
            if function is None and not program.reads_stream(name)
        } | set(program.code.functions)

    def proposal(self, job: str) -> Proposal:
        program = self._program
        targets = [target_of(program, query) for query in queries(program.code)]
        for number, target in enumerate(targets):
            before = [other.name for other in targets[:number]]
            if target.name in before:
                target.name = f"{target.name}_{number + 1}"
        for target in targets:
            known = [other for other in targets if other.query.start.line not in self._failed]
            read_datasets(program, target, known)
        covered: set[ast.stmt] = set()
        for target in targets:
            line, statement = target.query.start.line, statement_of(self._program, target.query)
            covered.add(statement)
            kept, above = dict(program.module), dict(program.above)
            body = Body(program)
            try:
                others = [other.key for other in targets if other is not target]
                if target.key is not None and target.key in others:
                    raise NotRecognizedError("another query writes to the same target")
                adopted, part = self._adopt(target, body)
            except NotRecognizedError as error:
                program.module, program.above = kept, above
                shown = short_text(program.source(statement))
                self._problems.append(NotRecognized(line, shown, str(error), is_query=True))
                continue
            covered |= body.statements
            self._queries.append(adopted)
            self._parts.append(part)
        self._problems += left_out(program, covered | set(program.module))
        head = f'"""Proposal of `penstock adopt` for {job}: compare it before the first run."""\n'
        text = f"{head}\nfrom pyspark import pipelines as dp\n{self._module()}\n\n"
        text += "\n\n".join(self._parts)
        return Proposal(text, self._queries, sorted(self._problems, key=attrgetter("line")))

    def _module(self) -> str:
        program, text = self._program, ""
        for node in program.block(None):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                program.module[node] = ""
        before: ast.stmt | None = None
        for node in sorted(program.module, key=lambda node: node.lineno):
            is_import = isinstance(node, _IMPORTS)
            if isinstance(node, _BLOCKS) or isinstance(before, _BLOCKS):
                text += "\n\n"
            elif not is_import and (before is None or isinstance(before, _IMPORTS)):
                text += "\n"
            text += program.above.get(node, "")
            text += (program.module[node] or program.source(node)) + "\n"
            before = node
        return text

    # -- queries -------------------------------------------------------------------------------

    def _adopt(self, target: Target, body: Body) -> tuple[AdoptedQuery, str]:
        query = target.query
        if not is_straight(statement_of(self._program, query), query):
            raise NotRecognizedError("it is started in a branch or a loop")
        if not query.is_complete:
            raise NotRecognizedError("its rows do not begin with `readStream` in this file")
        if not query.has_known_options:
            raise NotRecognizedError("options of its writer are not in the text")
        if query.has("foreach"):
            raise NotRecognizedError("`foreach`: see `penstock.batches.foreach_row`")
        location = query.option("checkpointlocation")
        checkpoint = None if location is None else location[1].text(location[0])
        adopted = AdoptedQuery(
            line=query.start.line,
            flow="",
            target=target.name,
            kind="table",
            checkpoint=None if checkpoint is None or "{" in checkpoint else checkpoint,
            keeps_state=query.keeps_state,
        )
        if query.keeps_state:
            adopted.notes.append(
                "its state is not carried over: it starts where its options say, so give it a "
                "table or folder without rows"
            )
        elif target.reads:
            adopted.checkpoint = None
            adopted.notes.append(
                f"its checkpoint belongs to the job's table of {target.reads}, and is not carried "
                f"over unless `path=` of {target.reads} is that table"
            )
        elif adopted.checkpoint is None:
            adopted.notes.append("its checkpoint is not in the text: nothing is carried over")
        if query.has("foreachBatch"):
            return adopted, self._function(target, adopted, body)
        if not query.has("format"):
            adopted.notes.append(f"its format is not in the text, and taken as {target.format}")
        if isinstance(sink_of(target.format), DeltaSink):
            if target.place is None:
                raise NotRecognizedError("its table or path is not in the text")
            table = {"path": self._program.value(*target.place)} if target.is_path else {}
            if not target.is_path and (path := query.option("path")) is not None:
                table["path"] = self._program.value(*path)
            return adopted, self._table(target, adopted, body, table)
        return adopted, self._sink(target, adopted, body)

    def _table(
        self,
        target: Target,
        adopted: AdoptedQuery,
        body: Body,
        table: dict[str, str],
        rule: str = "",
    ) -> str:
        """A dataset; `table` has arguments that are already known."""
        if not target.is_path and (target.key is None or "{" in target.key):
            raise NotRecognizedError("its table is known only when the program runs")
        function = self._identifier(target.name.rpartition(".")[2])
        adopted.flow = adopted.target = target.name
        arguments = {} if function == target.name else {"name": f'"{target.name}"'}
        arguments |= table
        for method, key in (("partitionBy", "partition_cols"), ("clusterBy", "cluster_by")):
            for step in target.query.steps(method):
                if step.call is not None:
                    nodes = [
                        node
                        for argument in step.call.args
                        for node in getattr(argument, "elts", [argument])  # of a list
                    ]
                    columns = [self._program.value(node, step.scope) for node in nodes]
                    arguments[key] = f"[{', '.join(columns)}]"
        if "path" not in table:
            adopted.notes.append(
                "the table of the job stays where it is, with its rows; add `path=` to continue it"
            )
        for key in self._options(target):
            if key.lower() != "mergeschema":
                adopted.notes.append(f"the option {key} is left out")
        arguments |= self._flow_arguments(target, adopted)
        return f"{rule}@dp.table{_call(arguments)}\n{self._function_text(target, function, body)}"

    def _sink(self, target: Target, adopted: AdoptedQuery, body: Body) -> str:
        kinds = KafkaSink | FileSink | ConsoleSink | NoopSink
        if not isinstance(sink_of(target.format), kinds):
            raise NotRecognizedError(f"sinks of the format {target.format} are not rewritten")
        if target.query.has("partitionBy"):
            raise NotRecognizedError("sinks of files have no partitions")
        name = self._identifier(target.name)
        values = self._options(target)
        if target.place is not None:
            values["path"] = self._program.value(*target.place)
        items = [f"        {json.dumps(key)}: {value},\n" for key, value in values.items()]
        options = "{\n" + "".join(items) + "    }" if items else "{}"
        if isinstance(sink_of(target.format), KafkaSink):
            adopted.notes.append("messages get the header penstock-id; rowIds=false leaves it out")
        head = f'dp.create_sink(\n    "{name}",\n    "{target.format}",\n    '
        return f"{head}{options},\n)\n\n\n" + self._flow_into(target, adopted, body, name)

    def _function(self, target: Target, adopted: AdoptedQuery, body: Body) -> str:
        program = self._program
        step = target.query.steps("foreachBatch")[0]
        argument = step.call.args[0] if step.call is not None and step.call.args else None
        functions = program.code.functions.get(getattr(argument, "id", ""), [])
        if len(functions) != 1 or functions[0] not in program.block(None):
            raise NotRecognizedError("its function is not in this module")
        function = functions[0]
        if len(function.args.args) != 2:
            raise NotRecognizedError(f"{function.name} has other arguments than rows and batch id")
        split = split_of(function)
        if split is not None:
            return self._split(target, adopted, body, function, split)
        name = function.name
        program.keep(name)
        proposed = ""
        if keys := merge_keys(function):
            proposed = (
                f"# TODO: the job applies changes in the order in which they arrive. With a column "
                "that orders them,\n# auto CDC replaces this function (docs/cdc.md):\n"
                f'# dp.create_streaming_table("...")\n# dp.create_auto_cdc_flow(\n#     '
                f'target="...", source="...", keys={json.dumps(keys)}, sequence_by="TODO"\n# )\n'
            )
            adopted.notes.append("it merges by keys: see the comment about create_auto_cdc_flow")
        program.above[function] = f"{proposed}@dp.foreach_batch_sink\n"
        adopted.notes.append(
            f"{function.name} is kept unchanged; it may get a repeated batch, as before"
        )
        return self._flow_into(target, adopted, body, name)

    def _split(
        self,
        target: Target,
        adopted: AdoptedQuery,
        body: Body,
        function: ast.FunctionDef,
        split: Split,
    ) -> str:
        program, scope = self._program, Scope(self._program.code)
        key = scope.text(split.good)
        if key is None or "{" in key:
            raise NotRecognizedError(f"the table of valid rows of {function.name} is not known")
        place = program.value(split.good, scope)
        good = Target(target.query, TABLE_FORMAT, None, split.is_path, key, "")
        last = key.rstrip("/").rpartition("/")[2] if split.is_path else key
        good.name = re.sub(r"\W" if split.is_path else r"[^\w.]", "_", last)
        condition = program.value(split.condition, scope)
        rule = f'@dp.expect_or_quarantine("valid", {condition})\n'
        adopted.notes += [
            f"the check of {function.name} is a rule: rows that violate it are in quarantine, and "
            f"not in {program.source(split.bad)}",
            "rows for which the condition is NULL violate the rule; a filter by its opposite does "
            "not have them",
        ]
        body.statements.add(function)
        return self._table(good, adopted, body, {"path": place} if split.is_path else {}, rule)

    # -- parts of the text ---------------------------------------------------------------------

    def _flow_into(self, target: Target, adopted: AdoptedQuery, body: Body, sink: str) -> str:
        adopted.kind, adopted.target = "sink", sink
        adopted.flow = self._identifier(f"to_{sink}")
        arguments = {"target": f'"{sink}"', **self._flow_arguments(target, adopted)}
        return f"@dp.append_flow{_call(arguments)}\n" + self._function_text(
            target, adopted.flow, body
        )

    def _function_text(self, target: Target, name: str, body: Body) -> str:
        program, step = self._program, target.query.writer[0]
        value, scope = step.value, step.scope
        assert value is not None
        while isinstance(value, ast.Name) and value.id in scope.arguments:
            value, scope = scope.arguments[value.id]
        body.add(value, scope, value.lineno if scope is not step.scope else target.query.start.line)
        text = program.source(value)
        if "\n" in text:
            text = f"(\n{program.source(value, 8)}\n    )"
        return "\n".join([f"def {name}():", *body.lines(), f"    return {text}"]) + "\n"

    def _flow_arguments(self, target: Target, adopted: AdoptedQuery) -> dict[str, str]:
        arguments: dict[str, str] = {}
        mode = target.query.text_of("outputMode")
        if target.query.has("outputMode") and mode is None:
            raise NotRecognizedError("its output mode is not in the text")
        if mode in ("complete", "update"):
            arguments["output_mode"] = f'"{mode}"'
        for step in target.query.steps("trigger"):
            for word in step.call.keywords if step.call is not None else ():
                text = step.scope.text(word.value)
                if word.arg in ("availableNow", "once"):
                    adopted.notes.append(f"trigger {word.arg}: `penstock run` without --continuous")
                elif text is None or "{" in text:
                    adopted.notes.append(f"its trigger {word.arg} is left out")
                else:
                    setting = f'{{"pipelines.trigger": "{word.arg}={text}"}}'
                    arguments["spark_conf"] = setting
        return arguments

    def _options(self, target: Target) -> dict[str, str]:
        values: dict[str, str] = {}
        for step in target.query.writer:
            left_out = _NO_OPTIONS if step.name in ("option", "options") else _ARGUMENTS
            for key, value in options(step):
                if key.lower() not in left_out:
                    values[key] = self._program.value(value, step.scope)
        return values

    def _identifier(self, name: str) -> str:
        base = re.sub(r"\W", "_", name) or "query"
        result = base = f"_{base}" if base[0].isdecimal() else base
        numbers = count(2)
        while result in self._names:
            result = f"{base}_{next(numbers)}"
        self._names.add(result)
        return result


def _call(arguments: dict[str, str]) -> str:
    items = [f"{key}={value}" for key, value in arguments.items()]
    line = f"({', '.join(items)})"
    if not items or len(line) < 80:
        return line if items else ""
    return "(\n" + "".join(f"    {item},\n" for item in items) + ")"
