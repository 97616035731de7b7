import pytest

import penstock as dp
from penstock._api.reading import reading
from penstock._api.registry import Registry, registration
from penstock.errors import DefinitionError


class StubReader:
    def read(self, name):
        return f"batch {name}"

    def read_stream(self, name):
        return f"stream {name}"


def test_read_functions_call_the_active_reader():
    with reading(StubReader()):
        assert dp.read("a") == "batch a"
        assert dp.read_stream("a") == "stream a"
        assert dp.readStream("LIVE.a") == "stream LIVE.a"


@pytest.mark.parametrize("read", [dp.read, dp.read_stream, dp.readStream])
def test_read_is_refused_at_module_level(read):
    with registration(Registry()), pytest.raises(DefinitionError) as caught:
        read("a")
    assert caught.value.condition == "OUTSIDE_PIPELINE"
    assert "query function" in caught.value.message


def test_name_of_another_type_is_refused():
    with reading(StubReader()), pytest.raises(DefinitionError) as caught:
        dp.read(len)
    assert "a string, not builtin_function_or_method" in caught.value.message


def test_reader_is_removed_when_its_block_fails():
    with pytest.raises(ZeroDivisionError), reading(StubReader()):
        raise ZeroDivisionError
    with pytest.raises(DefinitionError):
        dp.read("a")
