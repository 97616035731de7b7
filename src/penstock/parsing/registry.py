"""A schema registry with Confluent's HTTP API: schemas by id and by subject.

Used by the driver for the columns of a subject, and by Python workers for the schemas that payloads
were written with. The schema of an id never changes, so each process requests it once.
"""

import base64
import contextlib
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from penstock._model.origin import capture_origin
from penstock._model.redaction import remember_secret
from penstock.errors import ConnectorError

_FIRST_PAUSE_SECONDS = 0.25
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_known: dict[tuple[str, str], "RegisteredSchema"] = {}
# The time until which an unknown schema is not requested again: a topic may have many payloads with
# its id.
_unknown: dict[tuple[str, str], float] = {}
_UNKNOWN_SECONDS = 5.0
_MOST_UNKNOWN = 10_000


class UnknownSchemaError(Exception):
    """The registry does not have a schema."""


@dataclass(frozen=True, kw_only=True)
class RegisteredSchema:
    """A schema of the registry; `kind` is `AVRO`, `PROTOBUF` or `JSON`.

    `references` are the texts of the referenced schemas, dependencies first. For Protobuf, `files`
    is a FileDescriptorSet whose last file is the schema, and `imports` are the imported texts by
    name.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()
    files: bytes = b""
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SchemaRegistry:
    """URL and authentication of a schema registry.

    Args:
        url: Root URL of Confluent's API; several replicas are separated by commas. For Apicurio:
            `http://host:8080/apis/ccompat/v7`.
        auth: `user:password` of basic authentication. Take it from a secret:
            `spark.conf.get("registry.auth")` with a reference in the settings, or
            `dbutils.secrets.get("registry", "auth")`.
        token: Token of bearer authentication.
        ca_file: Trusted certificates, in PEM format; those of the machine by default.
        timeout_seconds: Timeout of a request.
        attempts: Number of requests to each replica before the query fails.

    Raises:
        ConnectorError: `SCHEMA_REGISTRY_INVALID`: no URL, or not http or https.
    """

    url: str
    auth: str | None = field(default=None, repr=False, kw_only=True)
    token: str | None = field(default=None, repr=False, kw_only=True)
    ca_file: str | None = field(default=None, kw_only=True)
    timeout_seconds: float = field(default=10.0, kw_only=True)
    attempts: int = field(default=5, kw_only=True)

    def __post_init__(self) -> None:
        for secret in (self.auth, self.token):
            if secret:
                remember_secret(secret)
        urls = self._urls()
        parts = [urlsplit(url) for url in urls]
        if not urls or any(p.scheme not in ("http", "https") or not p.hostname for p in parts):
            raise _invalid("its URL must begin with http:// or https://")
        if any(p.username is not None for p in parts):
            raise _invalid("its URL contains a user name; use `auth`")
        if self.auth is not None and ":" not in self.auth:
            raise _invalid("`auth` must be `user:password`")

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id; raises `UnknownSchemaError`, or `ConnectorError`."""
        return self._kept(f"schemas/ids/{schema_id}")

    def latest(self, subject: str) -> RegisteredSchema:
        """The current latest version of a subject; raises the same errors as `schema`."""
        return self._read(f"subjects/{quote(subject, safe='')}/versions/latest")

    def _kept(self, path: str) -> RegisteredSchema:
        key = (self.url, path)
        if key not in _known:
            if time.monotonic() < _unknown.get(key, 0.0):
                raise UnknownSchemaError(path)
            try:
                _known[key] = self._read(path)
            except UnknownSchemaError:
                if len(_unknown) >= _MOST_UNKNOWN:
                    _unknown.clear()
                _unknown[key] = time.monotonic() + _UNKNOWN_SECONDS
                raise
        return _known[key]

    def _read(self, path: str) -> RegisteredSchema:
        answer = self._get(path)
        kind = str(answer.get("schemaType") or "AVRO").upper()
        if kind == "PROTOBUF":
            return self._protobuf(path, answer)
        references: list[str] = []
        for reference in answer.get("references") or ():
            schema = self._kept(_version(reference))
            references += [*schema.references, schema.text]
        unique = tuple(dict.fromkeys(references))
        return RegisteredSchema(kind=kind, text=str(answer["schema"]), references=unique)

    def _protobuf(self, path: str, answer: dict[str, Any]) -> RegisteredSchema:
        from penstock.parsing.protobuf import compile_files, file_set

        text = str(answer["schema"])
        texts: dict[str, str] = {}
        files: dict[str, bytes] = {}
        for reference in answer.get("references") or ():
            schema = self._kept(_version(reference))
            texts |= {**dict(schema.imports), str(reference["name"]): schema.text}
            files[str(reference["name"])] = schema.files
        try:
            serialized = self._get(f"{path}?format=serialized")["schema"]
            content = base64.b64decode(str(serialized), validate=True)
        except ValueError:  # not every registry supports this format
            compiled = compile_files(text, texts)
        else:
            compiled = file_set(content, files)
        return RegisteredSchema(
            kind="PROTOBUF", text=text, files=compiled, imports=tuple(texts.items())
        )

    def _get(self, path: str) -> dict[str, Any]:
        pause = threading.Event()
        problem = ""
        for attempt in range(max(1, self.attempts)):
            if attempt:
                pause.wait(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            for url in self._urls():
                try:
                    with self._open(f"{url}/{path}") as response:
                        return self._object(response.read())
                except urllib.error.HTTPError as error:
                    with error:
                        body = error.read()
                    if error.code < 500 and error.code not in (408, 429):
                        raise self._denied(path, error.code, body) from None
                    problem = f"it returned status {error.code}"
                except (OSError, http.client.HTTPException) as error:
                    problem = str(getattr(error, "reason", error)) or type(error).__name__
        raise ConnectorError(
            "SCHEMA_REGISTRY_UNREACHABLE",
            f"the schema registry {self.url} cannot be reached: {problem}",
            hint="nothing of the batch was written; it is retried when the registry responds",
        )

    def _open(self, url: str) -> Any:
        request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
        request.add_header("Accept", _ACCEPT)
        if self.auth:
            encoded = base64.b64encode(self.auth.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        elif self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        context = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
        return urllib.request.urlopen(  # noqa: S310
            request, timeout=self.timeout_seconds, context=context
        )

    def _object(self, body: bytes) -> dict[str, Any]:
        with contextlib.suppress(ValueError):
            content = json.loads(body)
            if isinstance(content, dict) and "schema" in content:
                return content
        raise self._refused("its response is not that of a schema registry")

    def _denied(self, path: str, status: int, body: bytes) -> Exception:
        try:
            code = int(json.loads(body)["error_code"])
        except (ValueError, KeyError, TypeError):
            code = 0
        if status == 404 and code // 100 == 404:
            return UnknownSchemaError(path)
        if status in (401, 403):
            return self._refused(f"access was denied (status {status})")
        return self._refused(f"it returned status {status} for {path}")

    def _refused(self, reason: str) -> ConnectorError:
        return ConnectorError(
            "SCHEMA_REGISTRY_REFUSED",
            f"the schema registry {self.url} cannot be used: {reason}",
            hint="check url and auth; the url of Apicurio ends in /apis/ccompat/v7",
        )

    def _urls(self) -> list[str]:
        return [url.strip().rstrip("/") for url in self.url.split(",") if url.strip()]


def _version(reference: dict[str, Any]) -> str:
    return f"subjects/{quote(str(reference['subject']), safe='')}/versions/{reference['version']}"


def _invalid(reason: str) -> ConnectorError:
    return ConnectorError(
        "SCHEMA_REGISTRY_INVALID",
        f"the schema registry cannot be used: {reason}",
        origin=capture_origin(),
        hint='SchemaRegistry("https://registry:8081", auth=spark.conf.get("registry.auth"))',
    )
