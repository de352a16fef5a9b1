"""What is committed and what is shipped."""
import pathlib
import subprocess
import sys
import zipfile

from serving import ROOT

HERE = ROOT / 'proto/python'


def python(*args: str | pathlib.Path, cwd: pathlib.Path = HERE) -> str:
    """What a Python of the same packages prints."""
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_committed_is_what_the_proto_files_give(tmp_path: pathlib.Path) -> None:
    python(HERE / 'generate', tmp_path)
    written = {file.relative_to(tmp_path) for file in tmp_path.rglob('*.py*')}
    committed = {file.relative_to(HERE / 'src') for file in HERE.glob('src/*/v1/*.py*')}
    assert written == committed and len(written) == 4
    for name in written:
        assert (tmp_path / name).read_text() == (HERE / 'src' / name).read_text(), (
            f'{name} is not current: run proto/python/generate')


def test_types_are_strict() -> None:
    python('-m', 'mypy', '--cache-dir', ROOT / 'target/mypy')


def test_a_wheel_is_all_that_is_needed(tmp_path: pathlib.Path) -> None:
    # From a copy: a build leaves folders beside the sources.
    source = tmp_path / 'source'
    python('-c', 'import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2])', HERE, source)
    python('-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-build-isolation',
           '--wheel-dir', tmp_path, source)
    wheel, = tmp_path.glob('aqueduct_client-*.whl')
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / 'site')
    assert 'aqueduct_client/py.typed' in names and 'aqueduct_client/v1/api_pb2.pyi' in names
    assert not [name for name in names if name.startswith(('tests', 'examples'))]
    shown = python('-c', 'import aqueduct_client as a; print(a.Client, a.__file__)',
                   cwd=tmp_path / 'site')
    assert str(tmp_path / 'site') in shown
