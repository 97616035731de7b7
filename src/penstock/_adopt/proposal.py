"""The declared equivalent of a job, as a proposal, and a report of what has none."""

import ast
import re
from dataclasses import dataclass, field

from penstock._adopt.batches import merge_keys, split_of
from penstock._adopt.excerpt import Body, NotRecognizedError, Program
from penstock._lint.bindings import Scope
from penstock._lint.calls import arguments_of
from penstock._lint.job_queries import Query, Step, queries
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.registry import sink_of
from penstock.sinks.spark import ConsoleSink, NoopSink

_TABLE = "delta"
_OWN_OPTIONS = ("checkpointlocation", "path", "mergeschema", "queryname")
_READ_STEPS = ("format", "load", "table", "option", "options", "schema", "readStream")
_IMPORTS = ast.Import | ast.ImportFrom
_BLOCKS = ast.FunctionDef | ast.ClassDef
_WAITS = "awaitTermination|awaitAnyTermination|processAllAvailable|lastProgress|spark.stop"


@dataclass(kw_only=True)
class AdoptedQuery:
    """A query of a job with its equivalent.

    `kind` is `table` or `sink`; `checkpoint` is `None` if it is not known from the text.
    """

    line: int
    flow: str
    target: str
    kind: str
    checkpoint: str | None
    keeps_state: bool
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NotRecognized:
    """A query or statement of a job without an equivalent in the proposal."""

    line: int
    text: str
    reason: str
    is_query: bool = False


@dataclass(frozen=True)
class Proposal:
    text: str
    queries: list[AdoptedQuery]
    not_recognized: list[NotRecognized]


@dataclass
class _Target:
    """Where a query writes to: `place` is the path or table, `key` what readers of it have."""

    query: Query
    format: str
    place: tuple[ast.expr, Scope] | None
    is_path: bool
    key: str | None
    name: str


def propose(text: str, job: str) -> Proposal:
    """Rewrite a job; raises `SyntaxError` if it is not Python.

    Args:
        text: The job.
        job: Its name, for the first line.
    """
    failed: set[int] = set()
    while True:
        proposal = _Writer(Program(text), failed).proposal(job)
        now = {problem.line for problem in proposal.not_recognized if problem.is_query}
        if now <= failed:
            return proposal
        failed |= now  # nothing reads the datasets of these


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
        targets = [self._target(query) for query in queries(program.code)]
        for number, target in enumerate(targets):
            before = [other.name for other in targets[:number]]
            if target.name in before:
                target.name = f"{target.name}_{number + 1}"
        for target in targets:
            self._read_datasets(target, targets)
        covered: set[ast.stmt] = set()
        for target in targets:
            line, statement = target.query.start.line, self._statement_of(target.query)
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
                shown = _short(program.source(statement))
                self._problems.append(NotRecognized(line, shown, str(error), is_query=True))
                continue
            covered |= body.statements
            self._queries.append(adopted)
            self._parts.append(part)
        self._list_others(covered)
        head = f'"""Proposal of `penstock adopt` for {job}: compare it before the first run."""\n'
        text = f"{head}\nfrom pyspark import pipelines as dp\n{self._module()}\n\n"
        text += "\n\n".join(self._parts)
        return Proposal(text, self._queries, sorted(self._problems, key=_line))

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

    def _target(self, query: Query) -> _Target:
        start = query.start
        assert start.call is not None
        place = query.option("path")
        is_path = True
        if start.call.args:
            place, is_path = (start.call.args[0], start.scope), start.name == "start"
        elif start.name == "toTable":
            place, is_path = query.option("tablename"), False
        known = query.text_of("format") or ("parquet" if is_path else _TABLE)
        key = None if place is None else place[1].text(place[0])
        last = (key or "").rstrip("/").rpartition("/")[2] if is_path else key
        topic = query.option("topic")
        names = [
            *(step.texts()[0] for step in query.writer if step.name == "queryName"),
            last,
            None if topic is None else topic[1].text(topic[0]),
            _variable(self._statement_of(query)),
        ]
        name = next((name for name in names if name and "{" not in name), "query")
        name = re.sub(r"\W" if is_path else r"[^\w.]", "_", name)
        return _Target(query, known, place, is_path, key, name)

    def _statement_of(self, query: Query) -> ast.stmt:
        program, start = self._program, query.start
        for node in program.block(start.scope.function):
            if any(part is start.call for part in ast.walk(node)):
                return node
        raise AssertionError(start.line)

    def _adopt(self, target: _Target, body: Body) -> tuple[AdoptedQuery, str]:
        query = target.query
        if isinstance(self._statement_of(query), ast.For | ast.While | ast.If | ast.With):
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
        elif adopted.checkpoint is None:
            adopted.notes.append("its checkpoint is not in the text: nothing is carried over")
        if query.has("foreachBatch"):
            return adopted, self._function(target, adopted, body)
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
        target: _Target,
        adopted: AdoptedQuery,
        body: Body,
        table: dict[str, str],
        rule: str = "",
    ) -> str:
        """A dataset; `table` are arguments that are known already."""
        if not target.is_path and (target.key is None or "{" in target.key):
            raise NotRecognizedError("its table is known only when the program runs")
        function = self._identifier(target.name.rpartition(".")[2])
        adopted.flow = adopted.target = target.name
        arguments = {} if function == target.name else {"name": f'"{target.name}"'}
        if not target.query.has("format", "foreachBatch"):
            adopted.notes.append("its format is not in the text, and taken as Delta")
        arguments |= table
        for method, key in (("partitionBy", "partition_cols"), ("clusterBy", "cluster_by")):
            for step in target.query.writer:
                if step.name == method and step.call is not None:
                    columns = [self._program.value(node, step.scope) for node in step.call.args]
                    arguments[key] = f"[{', '.join(columns)}]"
        if "path" not in table:
            adopted.notes.append(
                "the table of the job stays where it is, with its rows; add `path=` to continue it"
            )
        for key in self._options(target):
            if key.lower() not in _OWN_OPTIONS:
                adopted.notes.append(f"the option {key} is left out")
        arguments |= self._flow_arguments(target, adopted)
        return f"{rule}@dp.table{_call(arguments)}\n{self._function_text(target, function, body)}"

    def _sink(self, target: _Target, adopted: AdoptedQuery, body: Body) -> str:
        kinds = KafkaSink | FileSink | ConsoleSink | NoopSink
        if not isinstance(sink_of(target.format), kinds):
            raise NotRecognizedError(f"sinks of the format {target.format} are not rewritten")
        if target.query.has("partitionBy"):
            raise NotRecognizedError("sinks of files have no partitions")
        name = self._identifier(target.name)
        values = self._options(target)
        if target.place is not None:
            values["path"] = self._program.value(*target.place)
        items = [
            f"        {key!r}: {value},\n"
            for key, value in values.items()
            if key.lower() not in ("checkpointlocation", "queryname")
        ]
        options = "{\n" + "".join(items) + "    }" if items else "{}"
        if isinstance(sink_of(target.format), KafkaSink):
            adopted.notes.append("messages get the header penstock-id; rowIds=false leaves it out")
        create = f"dp.create_sink(\n    {name!r},\n    {target.format!r},\n    {options},\n)\n\n\n"
        return create.replace("'", '"') + self._flow_into(target, adopted, body, name)

    def _function(self, target: _Target, adopted: AdoptedQuery, body: Body) -> str:
        program = self._program
        step = next(step for step in target.query.writer if step.name == "foreachBatch")
        argument = step.call.args[0] if step.call is not None and step.call.args else None
        if isinstance(argument, ast.Lambda):
            values = ", ".join(name.arg for name in argument.args.args)
            name = self._identifier(target.name)
            body.check_module(argument, step.scope)
            text = f"@dp.foreach_batch_sink\ndef {name}({values}):\n"
            text += f"    {program.source(argument.body)}\n\n\n"
            return text + self._flow_into(target, adopted, body, name)
        functions = program.code.functions.get(getattr(argument, "id", ""), [])
        if len(functions) != 1 or functions[0] not in program.block(None):
            raise NotRecognizedError("its function is not in this module")
        function = functions[0]
        split = split_of(function)
        if split is not None:
            return self._split(target, adopted, body, function)
        name = function.name
        program.keep(name)
        proposed = ""
        if keys := merge_keys(function):
            proposed = (
                f"# TODO: the job applies changes in the order in which they arrive. With a column "
                "that orders them,\n# auto CDC replaces this function (docs/cdc.md):\n"
                f'# dp.create_streaming_table("...")\n# dp.create_auto_cdc_flow(\n#     '
                f'target="...", source="...", keys={keys}, sequence_by="TODO"\n# )\n'
            ).replace("'", '"')
            adopted.notes.append("it merges by keys: see the comment about create_auto_cdc_flow")
        program.above[function] = f"{proposed}@dp.foreach_batch_sink\n"
        adopted.notes.append(
            f"{function.name} is kept as it is; it may get a repeated batch, as before"
        )
        return self._flow_into(target, adopted, body, name)

    def _split(
        self, target: _Target, adopted: AdoptedQuery, body: Body, function: ast.FunctionDef
    ) -> str:
        program, scope = self._program, Scope(self._program.code)
        split = split_of(function)
        assert split is not None
        key = scope.text(split.good)
        if key is None or "{" in key:
            raise NotRecognizedError(f"the table of valid rows of {function.name} is not known")
        place = program.value(split.good, scope)
        good = _Target(target.query, _TABLE, None, split.is_path, key, "")
        last = key.rstrip("/").rpartition("/")[2] if split.is_path else key
        good.name = re.sub(r"\W" if split.is_path else r"[^\w.]", "_", last)
        condition = program.value(split.condition, scope)
        rule = f'@dp.expect_or_quarantine("valid", {condition})\n'
        adopted.notes += [
            f"the check of {function.name} is a rule: rows that break it are in quarantine, and "
            f"not in {program.source(split.bad)}",
            "rows for which the condition is NULL break the rule; a filter by its opposite does "
            "not have them",
        ]
        body.statements.add(function)
        return self._table(good, adopted, body, {"path": place} if split.is_path else {}, rule)

    # -- parts of the text ---------------------------------------------------------------------

    def _flow_into(self, target: _Target, adopted: AdoptedQuery, body: Body, sink: str) -> str:
        adopted.kind, adopted.target = "sink", sink
        adopted.flow = self._identifier(f"to_{sink}")
        arguments = {"target": f'"{sink}"', **self._flow_arguments(target, adopted)}
        return f"@dp.append_flow{_call(arguments)}\n" + self._function_text(
            target, adopted.flow, body
        )

    def _function_text(self, target: _Target, name: str, body: Body) -> str:
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

    def _flow_arguments(self, target: _Target, adopted: AdoptedQuery) -> dict[str, str]:
        arguments: dict[str, str] = {}
        mode = target.query.text_of("outputMode")
        if target.query.has("outputMode") and mode is None:
            raise NotRecognizedError("its output mode is not in the text")
        if mode in ("complete", "update"):
            arguments["output_mode"] = f'"{mode}"'
        for step in target.query.writer:
            for word in step.call.keywords if step.name == "trigger" and step.call else ():
                text = step.scope.text(word.value)
                if word.arg in ("availableNow", "once"):
                    adopted.notes.append(f"trigger {word.arg}: `penstock run` without --continuous")
                elif text is None or "{" in text:
                    adopted.notes.append(f"its trigger {word.arg} is left out")
                else:
                    setting = f'{{"pipelines.trigger": "{word.arg}={text}"}}'
                    arguments["spark_conf"] = setting
        return arguments

    def _options(self, target: _Target) -> dict[str, str]:
        return {
            key: self._program.value(value, step.scope)
            for step in target.query.writer
            for key, value in _options(step)
            if key.lower() not in ("checkpointlocation", "path", "queryname")
        }

    def _identifier(self, name: str) -> str:
        base = re.sub(r"\W", "_", name) or "query"
        base = f"_{base}" if base[0].isdecimal() else base
        number = 1
        result = base
        while result in self._names:
            number += 1
            result = f"{base}_{number}"
        self._names.add(result)
        return result

    def _read_datasets(self, target: _Target, targets: list[_Target]) -> None:
        """Let a reader of what another query writes read the dataset."""
        steps = target.query.rows
        at = next((n for n, step in enumerate(steps) if step.name in ("load", "table")), None)
        if at is None or any(step.name not in _READ_STEPS for step in steps[:at]):
            return
        last = steps[at]
        text = (last.texts() or [None])[0]
        for other in targets:
            is_table = isinstance(sink_of(other.format), DeltaSink) and other is not target
            is_table = is_table and other.query.start.line not in self._failed
            if not is_table or text is None or other.key is None or other.query.has("foreachBatch"):
                continue
            if other.is_path is (last.name == "load") and _same(text, other.key):
                for step in steps[:at]:
                    if step.name == "format" and step.call is not None:
                        self._program.replace_call(step.call, "")
                if last.call is not None:
                    self._program.replace_call(last.call, f'.table("{other.name}")')

    def _list_others(self, covered: set[ast.stmt]) -> None:
        program = self._program
        kept = covered | set(program.module)
        functions = {scope for node in kept for scope in [_owner(program, node)] if scope}
        for function in [None, *functions]:
            for node in program.block(function):
                value = getattr(node, "value", None)
                if (
                    node in kept
                    or node in functions
                    or isinstance(node, _IMPORTS)
                    or isinstance(value, ast.Constant | ast.Name | ast.JoinedStr)
                ):
                    continue
                text = program.source(node)
                is_session = isinstance(node, ast.Assign) and "SparkSession" in text
                if is_session or ".conf.set(" in text:
                    reason = "Penstock has its own session: set what it needs in `configuration`"
                elif re.search(_WAITS, text):
                    reason = "Penstock starts, watches and ends the flows"
                else:
                    reason = "no query needs it, or it has no declared equivalent"
                self._problems.append(NotRecognized(node.lineno, _short(text), reason))


def _owner(program: Program, node: ast.stmt) -> ast.FunctionDef | None:
    for functions in program.code.functions.values():
        for function in functions:
            if node in program.block(function):
                return function
    return None


def _line(problem: NotRecognized) -> int:
    return problem.line


def _options(step: Step) -> list[tuple[str, ast.expr]]:
    if step.call is None or step.name not in ("option", "options", "start", "toTable"):
        return []
    if step.name in ("option", "options"):
        return list(arguments_of(step.call))
    named = ("format", "outputMode", "partitionBy", "queryName", "path", "tableName")
    return [(w.arg, w.value) for w in step.call.keywords if w.arg and w.arg not in named]


def _call(arguments: dict[str, str]) -> str:
    items = [f"{key}={value}" for key, value in arguments.items()]
    line = f"({', '.join(items)})"
    if not items or len(line) < 80:
        return line if items else ""
    return "(\n" + "".join(f"    {item},\n" for item in items) + ")"


def _same(first: str, second: str) -> bool:
    return first.rstrip("/").removeprefix("./") == second.rstrip("/").removeprefix("./")


def _short(text: str) -> str:
    line, _, rest = text.strip().partition("\n")
    return line[:60] + (" ..." if rest or len(line) > 60 else "")


def _variable(node: ast.stmt) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else None
