"""Rewrites the sections of docs/performance.md, and its plots, from what was measured."""
import datetime
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs/performance.md'
FIGURES = ROOT / 'docs/figures'

# What must be shown: of whom, at how many tokens, beside whom, at least how many times.
RATIOS = [
    *[('prefill', ('aqueduct bf16', 'dense'), n, ('torch bf16', 'dense'), 2)
      for n in (512, 2048, 8192)],
    *[('prefill', ('aqueduct Q8_0', 'dense'), n, ('llama.cpp Q8_0', 'dense'), 5)
      for n in (512, 2048, 8192)],
    ('prefill', ('aqueduct bf16', 'h2o'), 8192, ('torch bf16', 'dense'), 6),
    ('prefill', ('aqueduct Q8_0', 'h2o'), 32768, ('llama.cpp Q8_0', 'dense'), 60),
    *[('decode', ('aqueduct bf16', 'dense'), n, ('torch bf16', 'dense'), None)
      for n in (512, 2048, 8192)],
    *[('decode', ('aqueduct Q8_0', 'dense'), n, ('llama.cpp Q8_0', 'dense'), None)
      for n in (512, 2048, 8192)],
]
COLOURS = [('#d1495b', '#e5677a'), ('#2f7fd1', '#58a6ff'), ('#2a9d5c', '#3fb97a'),
           ('#8250df', '#a371f7')]


def write(rows, kernels, profile, versions):
    """`rows` of `peers.py`, rows of `bench kernels` and of `bench profile`."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    sections = {
        'machine': machine(rows, kernels, versions),
        'ratios': ratios(rows, profile),
        'prefill': speeds(rows, 'prefill'),
        'decode': speeds(rows, 'decode'),
        'products': products(rows),
        'profile': parts(profile),
        'kernels': peaks(kernels),
    }
    page = PAGE.read_text()
    for name, lines in sections.items():
        begin = f'<!-- ops/bench/peers {name} -->\n'
        before, rest = page.split(begin)
        after = rest[rest.index('<!-- end -->'):]
        page = before + begin + '\n'.join(lines) + '\n' + after
    PAGE.write_text(page)
    for phase, title in (('prefill', 'Prefill: tokens per second over the length of the prompt'),
                         ('decode', 'Decode: tokens per second over the tokens before')):
        (FIGURES / f'peers-{phase}.svg').write_text(plot(rows, phase, title))


def machine(rows, kernels, versions):
    first = kernels[0]
    quick = '' if any(length_of(row) > 2048 for row in rows) else ' A `--quick` run.'
    return [f'Measured on {datetime.date.today()} at commit `{first["commit"]}`: {first["cpu"]}, '
            f'{first["cores"]} cores, {first["threads"]} threads. ' + '; '.join(versions) + '.'
            + quick]


def length_of(row):
    return row['depth_tokens'] if row['phase'] == 'decode' else row['prompt_tokens']


def speed(rows, phase, who, tokens):
    for row in rows:
        if (row['phase'], row['engine'], row['policy'], length_of(row)) == (phase, *who, tokens):
            return row['tokens_per_second']
    return None


def ratios(rows, profile):
    lines = ['| what | measured | wanted |', '|---|--:|--:|']

    def line(what, value, wanted, unit=''):
        value = 'not measured' if value is None else f'{value:.2f}{unit}'
        lines.append(f'| {what} | {value} | {wanted} |')

    for phase, us, tokens, them, least in RATIOS:
        ours, theirs = speed(rows, phase, us, tokens), speed(rows, phase, them, tokens)
        where = 'tokens' if phase == 'prefill' else 'tokens deep'
        line(f'{phase}, {tokens:,} {where}: {us[0]} {us[1]} beside {them[0]}',
             ours / theirs if ours and theirs else None, f'≥ {least}' if least else '', ' times')
    for phase, short, deep, wanted in (('prefill', 8192, 65536, '≥ 0.9'),
                                       ('decode', 2048, 32768, '≥ 0.9')):
        who = ('aqueduct bf16', 'h2o')
        near, far = speed(rows, phase, who, short), speed(rows, phase, who, deep)
        line(f'h2o {phase}: {deep:,} tokens beside {short:,}',
             far / near if near and far else None, wanted, ' times')
    for phase, wanted in (('prefill', '≤ 8 %'), ('decode', '≤ 1 %')):
        share = [row['share'] for row in profile if row['phase'] == phase
                 and row['policy'] == 'h2o' and row['part'] in ('scores', 'select')]
        line(f'scores and selection of h2o {phase}', sum(share) * 100 if share else None, wanted,
             ' %')
    return lines


def speeds(rows, phase):
    lengths = sorted({length_of(row) for row in rows if row['phase'] == phase})
    who = list(dict.fromkeys((row['engine'], row['policy']) for row in rows
                             if row['phase'] == phase))
    lines = ['| engine | policy | ' + ' | '.join(f'{n:,}' for n in lengths) + ' |',
             '|---|---|' + '--:|' * len(lengths)]
    notes = []
    for engine, policy in who:
        cells = []
        for n in lengths:
            row = next((row for row in rows if row['phase'] == phase and length_of(row) == n
                        and (row['engine'], row['policy']) == (engine, policy)), None)
            cells.append(cell(row))
            if row and row['note']:
                notes.append(f'{engine}: {row["note"]}.')
        lines.append(f'| {engine} | {policy} | ' + ' | '.join(cells) + ' |')
    return [*lines, '', *dict.fromkeys(notes)] if notes else lines


def cell(row):
    if row is None or row['tokens_per_second'] is None:
        return '–'
    digits = 0 if row['tokens_per_second'] >= 100 else 1
    text = f'{row["tokens_per_second"]:.{digits}f} ± {row["spread"] / 2:.{digits}f}'
    return text if row['runs'] >= 5 else f'{text} ({row["runs"]})'


def products(rows):
    rows = [row for row in rows if row['phase'] == 'gemm']
    engines = list(dict.fromkeys(row['engine'] for row in rows))
    shapes = list(dict.fromkeys(row['policy'] for row in rows))
    lines = ['| shape | ' + ' | '.join(engines) + ' |', '|---|' + '--:|' * len(engines)]
    for shape in shapes:
        found = {row['engine']: row['gflop_per_second'] for row in rows if row['policy'] == shape}
        cells = [f'{found[engine]:.0f}' if engine in found else '–' for engine in engines]
        lines.append(f'| {shape} | ' + ' | '.join(cells) + ' |')
    return lines


def parts(profile):
    columns = list(dict.fromkeys((row['phase'], row['policy']) for row in profile))
    names = list(dict.fromkeys(row['part'] for row in profile))
    lines = ['| part | ' + ' | '.join(f'{phase}, {policy}' for phase, policy in columns) + ' |',
             '|---|' + '--:|' * len(columns)]
    for name in names:
        found = {(row['phase'], row['policy']): row for row in profile if row['part'] == name}
        cells = [f'{found[column]["share"] * 100:.1f} %' for column in columns]
        lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
    return lines


def peaks(kernels):
    lines = ['| kernel | path | shape | µs | GFLOP/s | of peak | GB/s | of memory |',
             '|---|---|---|--:|--:|--:|--:|--:|']
    for row in kernels:
        lines.append(
            f'| {row["kernel"]} | {row["path"]} | {row["shape"]} | {row["us"]:.0f} | '
            f'{row["flop"] / row["us"] / 1e3:.1f} | {row["peak_share"] * 100:.0f} % | '
            f'{row["bytes"] / row["us"] / 1e3:.1f} | {row["bandwidth_share"] * 100:.0f} % |')
    return lines


LEFT, TOP, RIGHT, BOTTOM = 80, 130, 720, 470


def plot(rows, phase, title):
    """Tokens per second over tokens, both on log axes."""
    rows = [row for row in rows if row['phase'] == phase and row['tokens_per_second']]
    who = list(dict.fromkeys((row['engine'], row['policy']) for row in rows))
    engines = list(dict.fromkeys(engine for engine, _ in who))
    lengths = sorted({length_of(row) for row in rows})
    values = [row['tokens_per_second'] for row in rows]
    xs, ys = (lengths[0] / 1.2, lengths[-1] * 1.2), (min(values) / 1.3, max(values) * 1.3)

    def at(tokens, value):
        share = [math.log(v / low) / math.log(high / low) for v, (low, high)
                 in ((tokens, xs), (value, ys))]
        return round(LEFT + share[0] * (RIGHT - LEFT)), round(BOTTOM - share[1] * (BOTTOM - TOP))

    marks = [f'<text class="title" x="{LEFT}" y="26">{title}</text>',
             f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>',
             f'<text x="{(LEFT + RIGHT) // 2}" y="{BOTTOM + 42}" text-anchor="middle">tokens</text>']
    for tokens in lengths:
        x, _ = at(tokens, ys[0])
        marks.append(f'<path class="axis" d="M{x} {BOTTOM}v5"/><text x="{x}" y="{BOTTOM + 20}" '
                     f'text-anchor="middle">{tokens:,}</text>')
    for value in (digit * 10 ** power for power in range(6) for digit in (1, 2, 5)):
        if ys[0] <= value <= ys[1]:
            _, y = at(xs[0], value)
            marks.append(f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>'
                         f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{value:,}</text>')
    for idx, (engine, policy) in enumerate(who):
        style = f'class="c{engines.index(engine) % len(COLOURS)} curve"'
        style += ' stroke-dasharray="7 4"' if policy == 'h2o' else ''
        points = [at(length_of(row), row['tokens_per_second']) for row in rows
                  if (row['engine'], row['policy']) == (engine, policy)]
        key = [(LEFT + idx % 3 * 220, 52 + idx // 3 * 20)]
        key.append((key[0][0] + 34, key[0][1]))
        for line in (points, key):
            path = 'M' + 'L'.join(f'{x} {y}' for x, y in line)
            rings = ''.join(f'M{x - 3} {y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0' for x, y in line)
            marks.append(f'<path {style} d="{path}"/><path {style.split(" stroke")[0]} d="{rings}"/>')
        marks.append(f'<text x="{key[1][0] + 10}" y="{key[1][1] + 4}">{engine}, {policy}</text>')
    light, dark = (''.join(f'.c{idx}{{stroke:{colour[ground]}}}'
                           for idx, colour in enumerate(COLOURS)) for ground in (0, 1))
    style = ('text{font:12px system-ui,sans-serif;fill:#57606a}'
             '.title{font-size:15px;font-weight:600}.axis,.grid{stroke:#8c959f;fill:none}'
             '.grid{stroke-opacity:.3}.curve{fill:none;stroke-width:1.8}' + light
             + '@media(prefers-color-scheme:dark){text{fill:#b1bac4}' + dark + '}')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {RIGHT + 60} {BOTTOM + 56}">\n'
            f'<style>{style}</style>\n' + '\n'.join(marks) + '\n</svg>\n')
