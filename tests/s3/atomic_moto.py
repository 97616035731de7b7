"""moto's server, in which a conditional write is atomic, as it is on S3.

moto 5.2.5 checks whether an object exists and then writes it, and serves requests on threads: two
concurrent writers can both get the response that they created it. The options are those of
`moto_server`.
"""

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_writes = threading.Lock()


def one_at_a_time(method: Any) -> Any:
    def locked(*args: Any) -> Any:
        with _writes:
            return method(*args)

    return locked


if __name__ == "__main__":
    S3Response._key_response_put = one_at_a_time(S3Response._key_response_put)
    S3Response._key_response_post = one_at_a_time(S3Response._key_response_post)
    main(sys.argv[1:])
