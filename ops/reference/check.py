#!/usr/bin/env python3
"""Check that golden.json is what h2o_reference.py says: same shapes, positions equal, numbers
within rounding (numpy's matrix products differ in the last bits from machine to machine)."""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ORACLE = HERE / 'h2o_reference.py'


def compare(path, want, seen):
    """Recurse through both; integers and text must be equal, floats near."""
    if isinstance(want, dict) and isinstance(seen, dict) and want.keys() == seen.keys():
        for key in want:
            compare(f'{path}.{key}', want[key], seen[key])
    elif isinstance(want, list) and isinstance(seen, list) and len(want) == len(seen):
        for idx, (a, b) in enumerate(zip(want, seen)):
            compare(f'{path}[{idx}]', a, b)
    elif isinstance(want, float) and isinstance(seen, float):
        if abs(want - seen) > 1e-9 * max(1.0, abs(want)):
            sys.exit(f'golden{path}: committed {want}, the oracle says {seen}')
    elif want != seen:
        sys.exit(f'golden{path}: committed {want!r:.60}, the oracle says {seen!r:.60}')


subprocess.run([sys.executable, ORACLE], check=True)
with tempfile.NamedTemporaryFile(suffix='.json') as out:
    subprocess.run([sys.executable, ORACLE, 'golden', out.name], check=True)
    fresh = json.loads(pathlib.Path(out.name).read_text())
compare('', json.loads((HERE / 'golden.json').read_text()), fresh)
print('golden.json is current')
