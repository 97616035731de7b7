"""Access to AWS, from the options of a source."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock._model.redaction import remember_secret

_OPTIONS = {
    "region": "region",
    "access_key": "awsaccesskey",
    "secret_key": "awssecretkey",
    "session_token": "awssessiontoken",
    "role_arn": "rolearn",
    "role_external_id": "roleexternalid",
    "role_session_name": "rolesessionname",
    "sts_endpoint": "stsendpoint",
}


@dataclass(frozen=True, kw_only=True)
class AwsAccess:
    """A region, and keys or a role; without them, AWS's default credentials are used."""

    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    role_external_id: str | None = field(default=None, repr=False)
    role_session_name: str = "penstock"
    sts_endpoint: str | None = None


def access_options(options: Mapping[str, str]) -> dict[str, str]:
    """The fields of `AwsAccess` from options with lower-case names; keys and tokens are masked."""
    for name in ("awsaccesskey", "awssecretkey", "awssessiontoken", "roleexternalid"):
        remember_secret(options.get(name, ""))
    return {key: options[name] for key, name in _OPTIONS.items() if options.get(name)}
