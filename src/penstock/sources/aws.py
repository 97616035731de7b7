"""Sessions of botocore, for sources on AWS."""

from typing import Any

from penstock._model.aws import AwsAccess
from penstock._model.exception_text import first_line
from penstock._model.extras import import_extra
from penstock.errors import ConnectorError


def require_botocore(feature: str) -> None:
    """Raise `MISSING_EXTRA` without botocore; `feature` is the subject of the message."""
    import_extra("botocore", "botocore.session", extra="aws", feature=feature)


def session(access: AwsAccess, config: Any, condition: str) -> Any:
    """A session; `condition` is the error condition if the role cannot be assumed."""
    from botocore.session import Session

    session = Session()
    if access.access_key:
        session.set_credentials(access.access_key, access.secret_key, access.session_token)
    if not access.role_arn:
        return session
    from botocore.credentials import DeferredRefreshableCredentials
    from botocore.exceptions import ClientError

    sts = session.create_client(
        "sts", region_name=access.region, endpoint_url=access.sts_endpoint, config=config
    )

    def assume() -> dict[str, str]:
        wanted = {"RoleArn": access.role_arn, "RoleSessionName": access.role_session_name}
        if access.role_external_id:
            wanted["ExternalId"] = access.role_external_id
        try:
            credentials = sts.assume_role(**wanted)["Credentials"]
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= 500 or "Throttl" in str(error.response["Error"].get("Code")):
                raise  # the caller retries its request
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
