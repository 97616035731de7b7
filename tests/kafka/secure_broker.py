"""An embedded broker that also listens with TLS and user names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock._local.broker import BrokerHandle, start_broker
from penstock._local.broker_files import configuration, free_ports, new_state, write_state

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MAP = "listener.security.protocol.map"
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True, kw_only=True)
class SecureListener:
    keystore: Path  # PKCS12 with key and certificate for 127.0.0.1
    keystore_password: str = field(repr=False)
    users: Mapping[str, str] = field(repr=False)  # passwords for PLAIN by user name
    port: int = field(default_factory=lambda: free_ports()[0])

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_to(self, settings: Mapping[str, str]) -> dict[str, str]:
        users = " ".join(f"user_{name}={_quoted(word)}" for name, word in self.users.items())
        plain = f"{_MODULES}.plain.PlainLoginModule required {users};"
        scram = f"{_MODULES}.scram.ScramLoginModule required;"
        prefix = "listener.name.secure."
        return {
            **settings,
            "listeners": f"{settings['listeners']},SECURE://{self.bootstrap_servers}",
            "advertised.listeners": f"{settings['advertised.listeners']},"
            f"SECURE://{self.bootstrap_servers}",
            "listener.security.protocol.map": f"{settings[_MAP]},SECURE:SASL_SSL",
            f"{prefix}sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            f"{prefix}plain.sasl.jaas.config": plain,
            f"{prefix}scram-sha-256.sasl.jaas.config": scram,
            f"{prefix}scram-sha-512.sasl.jaas.config": scram,
            f"{prefix}ssl.keystore.type": "PKCS12",
            f"{prefix}ssl.keystore.location": str(self.keystore),
            f"{prefix}ssl.keystore.password": self.keystore_password,
            f"{prefix}ssl.key.password": self.keystore_password,
        }


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def start_secure_broker(directory: Path, listener: SecureListener) -> BrokerHandle:
    directory.mkdir()
    state = new_state(directory, None, keep_ports=False)
    write_state(directory, state)  # its ports are chosen at the first start
    return start_broker(directory, properties=listener.add_to(configuration(state)))
