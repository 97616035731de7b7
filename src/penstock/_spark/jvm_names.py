"""Classes and packages of the JVM, looked up once per process.

py4j resolves every part of `jvm.org.apache...` on every use, and for a package the JVM searches all
jars for a class of that name. This takes a quarter of the processor time of a small update.
"""

from typing import Any

from py4j.java_gateway import JavaClass, JavaGateway, JavaPackage, JVMView


def remember_names(gateway: JavaGateway) -> None:
    """Make `gateway.jvm` cache each class and package."""
    view = gateway.jvm
    gateway.jvm = _View(view._gateway_client, view._jvm_name, id=view._id)


class _View(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


def _kept(owner: Any, name: str, value: Any) -> Any:
    if isinstance(value, JavaPackage):
        value = _Package(value._fqn, value._gateway_client, value._jvm_id)
        if not name.rpartition(".")[2][:1].islower():
            # A missing class looks like a package; a jar may add it later.
            return value
    if isinstance(value, JavaPackage | JavaClass):
        owner.__dict__[name] = value
    return value


# PySpark recognizes a missing jar by the text "'JavaPackage' object is not callable".
_Package.__name__ = JavaPackage.__name__
