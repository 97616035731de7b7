"""A program that acquires a lease: `lease_holder.py FILE [SECONDS]`.

With SECONDS, it starts a child process that inherits the lock like Spark's JVM, and ends after that
time. The program prints one line when it has the lease, then waits until its stdin is closed.
"""

import subprocess
import sys
from pathlib import Path

from penstock._runtime.lease import Lease
from penstock.errors import SetupError

if __name__ == "__main__":
    try:
        lease = Lease.acquire(Path(sys.argv[1]), holder={"pipeline": "shop"})
    except SetupError as error:
        print(error.condition, error, flush=True)
        sys.exit(error.exit_code)
    child = ""
    if len(sys.argv) > 2:
        process = subprocess.Popen(
            ["sleep", sys.argv[2]],
            pass_fds=(lease.fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        child = str(process.pid)
    print("holds", child, flush=True)
    sys.stdin.read()
