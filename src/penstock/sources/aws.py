"""Sessions of botocore, for sources on AWS."""

from typing import Any, Protocol

from penstock._model.exception_text import first_line
from penstock._model.extras import import_extra
from penstock.errors import ConnectorError


class Access(Protocol):
    """Credentials; without any, those of AWS's default chain."""

    @property
    def region(self) -> str | None: ...
    @property
    def access_key(self) -> str | None: ...
    @property
    def secret_key(self) -> str | None: ...
    @property
    def session_token(self) -> str | None: ...
    @property
    def role_arn(self) -> str | None: ...
    @property
    def role_external_id(self) -> str | None: ...
    @property
    def role_session_name(self) -> str: ...
    @property
    def sts_endpoint(self) -> str | None: ...


def require_botocore(feature: str) -> None:
    """Raises `MISSING_EXTRA` without botocore; `feature` is the subject of the message."""
    import_extra("botocore", "botocore.session", extra="aws", feature=feature)


def session(access: Access, config: Any, condition: str) -> Any:
    """A session; raises `ConnectorError` with `condition` if a role cannot be assumed."""
    from botocore.session import Session

    session = Session()
    if access.access_key:
        session.set_credentials(access.access_key, access.secret_key, access.session_token)
    if not access.role_arn:
        return session
    from botocore.credentials import DeferredRefreshableCredentials

    sts = session.create_client(
        "sts", region_name=access.region, endpoint_url=access.sts_endpoint, config=config
    )

    def assume() -> dict[str, str]:
        wanted = {"RoleArn": access.role_arn, "RoleSessionName": access.role_session_name}
        if access.role_external_id:
            wanted["ExternalId"] = access.role_external_id
        try:
            credentials = sts.assume_role(**wanted)["Credentials"]
        except Exception as error:
            raise ConnectorError(
                condition,
                f"the role {access.role_arn} could not be assumed: {first_line(error)}",
                hint="check `roleArn` and `roleExternalId`, and that the role trusts the caller",
            ) from None
        return {
            "access_key": credentials["AccessKeyId"],
            "secret_key": credentials["SecretAccessKey"],
            "token": credentials["SessionToken"],
            "expiry_time": credentials["Expiration"].isoformat(),
        }

    with_role = Session()
    with_role._credentials = DeferredRefreshableCredentials(assume, "assume-role")
    return with_role
