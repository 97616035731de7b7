"""`penstock maintain`: compaction, ordering and VACUUM of tables while no update runs."""

from collections.abc import Sequence

from penstock._execution.maintained import maintained_tables
from penstock._launch import open_for_command
from penstock._model.exception_text import first_line
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import Event
from penstock._repair.journal import recording
from penstock.errors import SpecError


def maintain_tables(
    settings: PipelineSettings, names: Sequence[str], *, vacuum: bool
) -> list[Event]:
    """Maintain tables now, even if nothing is due; return the events of the maintenance.

    Called on the main thread. Holds the leases of an update. `names` are tables; all if empty. A
    failed table does not prevent the maintenance of others.
    """
    with open_for_command(settings, "maintain", records=True) as pipeline:
        selected = pipeline.index.select(names)
        stored = {node.key: node for node in pipeline.graph.stored()}
        if names and (selected is None or not selected <= stored.keys()):
            raise SpecError(
                "UNKNOWN_DATASET_SELECTED",
                f"not all of these are tables of the pipeline: {', '.join(names)}",
                hint="tables: " + ", ".join(node.display for node in stored.values()),
            )
        keys = selected or frozenset(stored)
        for node in pipeline.graph.flows.values():
            if node.target in keys:
                pipeline.check_migration(node)
        for key in keys:
            pipeline.lease(stored[key])
        events: list[Event] = []
        with recording(
            pipeline,
            None,
            command="maintain",
            properties={"tables": list(names), "vacuum": vacuum},
            text="maintaining tables",
        ) as record:
            tables = maintained_tables(
                pipeline.tables,
                settings.maintenance,
                record.flow,
                keys,
                with_events=not names,
            )
            for table in tables:
                try:
                    done = table.run(vacuum=vacuum)
                except Exception as error:  # any error: the other tables are maintained
                    done = [*table.pending_events(), table.failed(first_line(error))]
                for event in done:
                    record.emit(event)
                events += done
        return events
