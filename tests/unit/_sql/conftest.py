"""SQL source text and the declarations that it contains."""

from dataclasses import dataclass, field

import pytest

from penstock._api.registry import Registry, registration
from penstock._model.dataset import Dataset
from penstock._model.flow import Flow
from penstock._sql.declare import SqlContext, declare_sql
from penstock.errors import PenstockError


@dataclass
class Declared:
    """The declarations and errors of SQL texts that share the context of a file."""

    context: SqlContext = field(default_factory=SqlContext)
    registry: Registry = field(default_factory=Registry)

    def add(self, text: str, *, file: str = "orders.sql", first_line: int = 1) -> "Declared":
        with registration(self.registry):
            declare_sql(text, file=file, context=self.context, first_line=first_line)
        return self

    @property
    def errors(self) -> tuple[PenstockError, ...]:
        return self.registry.errors

    @property
    def error(self) -> PenstockError:
        (error,) = self.errors
        return error

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        return self.registry.build().datasets

    @property
    def dataset(self) -> Dataset:
        (dataset,) = self.datasets
        return dataset

    @property
    def flows(self) -> tuple[Flow, ...]:
        return self.registry.build().flows

    @property
    def flow(self) -> Flow:
        (flow,) = self.flows
        return flow

    @property
    def query(self) -> str:
        return self.flow.function.query.text


@pytest.fixture
def sql():
    """A function that declares a text. Keyword arguments are fields of the context."""

    def declare(text: str = "", **context: object) -> Declared:
        return Declared(SqlContext(**context)).add(text)

    return declare
