"""Why a stream of a table cannot continue."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock._model.exception_text import first_line
from penstock._observe.masking import shown
from penstock.errors import ConnectorError, FlowError, PenstockError, SetupError
from penstock.sources.jdbc.commit_visibility import NotSettledError
from penstock.sources.jdbc.database import DatabaseError
from penstock.sources.jdbc.options import JdbcSourceOptions


@dataclass
class SourceFailure(Exception):
    """Why a stream cannot continue, before the flow is known; `is_running` if it had started."""

    condition: str
    message: str
    hint: str | None = None
    is_running: bool = False
    retryable: bool = False

    def as_error(self, flow: str) -> PenstockError:
        """The error of the flow, or of its options."""
        if not (self.is_running or self.retryable):
            return ConnectorError(self.condition, self.message, hint=self.hint)
        return FlowError(
            self.condition,
            f"flow {flow!r}: {self.message}",
            flow=flow,
            retryable=self.retryable,
            hint=self.hint,
        )


@contextlib.contextmanager
def explained(options: JdbcSourceOptions) -> Iterator[None]:
    """Raise failures of the database and of Spark's reader as `SourceFailure`."""
    place = options.place
    try:
        yield
    except NotSettledError as error:
        raise SourceFailure(
            "JDBC_NOT_SETTLED",
            f"{place}: {error}",
            "nothing is lost: the next update continues. pg_locks and pg_stat_activity show "
            "who writes; option `settleTimeout` waits longer",
            is_running=True,
            retryable=True,
        ) from error
    except DatabaseError as error:
        raise SourceFailure(
            "JDBC_SOURCE_UNAVAILABLE",
            f"{place}: {error}",
            "check that the database runs at this address; nothing is lost: the flow continues "
            "after its last key"
            if error.may_pass
            else "check url, user, password and the name of the table",
            retryable=error.may_pass,
        ) from error
    except (Py4JJavaError, PySparkException) as error:
        text = shown(first_line(error))
        if "ClassNotFoundException" in str(error) or "No suitable driver" in str(error):
            raise SetupError(
                "JARS_MISSING",
                "Spark's class path has no JDBC driver for " + ":".join(options.url.split(":")[:2]),
                hint="PostgreSQL: `penstock jars sync --set postgresql`; MariaDB, MySQL: `--set "
                "mariadb` and a URL `jdbc:mariadb:`; others: add the jar with the setting "
                "spark.jars, and its class as option `driver`",
            ) from error
        raise SourceFailure(
            "JDBC_SOURCE_UNAVAILABLE",
            f"{place}: {text}",
            "check url, user, password and the name of the table",
        ) from error
