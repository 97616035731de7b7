import pytest

from penstock._project.packages import is_installed, requested_packages


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("pip install pandas", ["pandas"]),
        ("pip install a b==1.0 'c>=2,<3' d[x,y]~=1 a", ["a", "b", "c", "d"]),
        ("pip install -q --upgrade a", ["a"]),
        ("pip install --index-url https://x/simple a -c limits.txt -i=u", ["a"]),
        ("pip install a @ https://x/a.zip b", ["a", "b"]),
        ("pip install 'a @ https://x/a.zip'", ["a"]),
        ("pip install /Volumes/main/libs/my_lib-1.2.3-py3-none-any.whl", ["my_lib"]),
        ("pip install https://x/y/other-0.1.tar.gz", ["other"]),
        ("pip install git+https://x/y.git#egg=fromgit", ["fromgit"]),
        ("pip install git+https://x/y.git . ./lib -e ../z $HOME", []),
        ("pip install a  # b c", ["a"]),
        ("pip install 'a", []),
        ("cd x && pip3 install a; echo pip", ["a"]),
        ("python -m pip install a", ["a"]),
        ("uv pip install a", ["a"]),
        ("pip install \\\n  a \\\n  b", ["a", "b"]),
        ("pip uninstall a", []),
        ("pip list", []),
        ("pip install", []),
        ("", []),
        ("ls", []),
    ],
)
def test_packages_of_pip_install_are_found(tmp_path, command, names):
    assert list(requested_packages(command, tmp_path)) == names


def test_packages_of_requirements_files_are_found(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# comment\n\na==1 --hash=sha256:x\nb; python_version < '3'\n-r sub/more.txt\n--no-index\n"
    )
    (tmp_path / "sub" / "more.txt").write_text("c\n-r ../requirements.txt\n")
    packages = requested_packages(
        "pip install -r requirements.txt -r nowhere.txt -rsub/more.txt d", tmp_path
    )
    assert list(packages) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("name", "installed"),
    [
        ("pandas", True),
        ("PyYAML", True),
        ("pydantic_core", True),
        ("no-such-one", False),
        ("", False),
    ],
)
def test_a_package_is_installed_when_its_distribution_is(name, installed):
    assert is_installed(name) is installed
