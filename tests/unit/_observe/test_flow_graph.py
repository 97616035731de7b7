"""Drawings of graphs with any names."""

from made_events import definition, flow_progress

from penstock._observe.events import EventOrigin, FlowStatus
from penstock._observe.flow_graph import dot_lines, flow_graph, mermaid_lines, text_lines


def _graph(special: str):
    def table(name: str):
        origin = EventOrigin(pipeline_name="p", dataset_name=name)
        body = {"dataset_type": "STREAMING_TABLE"}
        if name == "c.s.a":
            body |= {"expectations": [{"name": "r", "condition": "true", "action": "warn"}]}
        return definition("dataset_definition", origin, "", body)

    def flow(target: str, inputs: list[str], outside: list[str]):
        body = {"output_dataset": target, "input_datasets": inputs, "external_inputs": outside}
        return definition("flow_definition", EventOrigin(flow_name=f"f {target}"), "", body)

    return flow_graph(
        [
            table("c.s.a"),
            table(special),
            table("c.s.z"),
            flow("c.s.a", [], ["kafka: orders"]),
            flow(special, ["c.s.a"], []),
            flow("c.s.z", ["c.s.a", special], []),
        ]
    )


def test_tree_shows_each_dataset_in_full_once():
    assert list(text_lines(_graph("c.s.b"))) == [
        "kafka: orders [source]",
        "`- a [streaming table, 1 rule]",
        "   |- b [streaming table]",
        "   |  `- z [streaming table]",
        "   `- z [streaming table] (shown above)",
    ]


def test_table_is_failed_when_one_of_its_flows_failed():
    table = definition("dataset_definition", EventOrigin(dataset_name="t"), "", {})
    ends = [
        flow_progress(EventOrigin(dataset_name="t", flow_name=name), status, "")
        for name, status in (("one", FlowStatus.FAILED), ("two", FlowStatus.COMPLETED))
    ]
    assert flow_graph([table, *ends]).nodes["t"].state == "FAILED"
    assert flow_graph([table]).nodes["t"].state is None


def test_tree_of_a_cyclic_graph_ends():
    def flow(target: str, source: str):
        body = {"output_dataset": target, "input_datasets": [source]}
        return definition("flow_definition", EventOrigin(flow_name=target), "", body)

    tables = [
        definition("dataset_definition", EventOrigin(dataset_name=name), "", {})
        for name in ("a", "b")
    ]
    graph = flow_graph([*tables, flow("a", "b"), flow("b", "a")])
    assert len(list(text_lines(graph))) == 3


def test_special_characters_are_escaped_in_mermaid_and_dot():
    graph = _graph('c.s.x"]; click n0 "y\\\n<b>&')
    mermaid = list(mermaid_lines(graph))
    assert len(mermaid) == 1 + 4 + 4
    assert all(line.count('"') == 2 for line in mermaid[1:5])
    dot = list(dot_lines(graph))
    assert len(dot) == 4 + 4 + 4
    for line in dot:
        inside = line.replace("\\\\", "").replace('\\"', "")
        assert inside.count('"') % 2 == 0
