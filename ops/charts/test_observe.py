"""Dashboard and alerts name what is there: checked by promtool, and by a Prometheus that scrapes
the pods of the default values."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from chart import CHART, ROOT, Manifests, values_of
from node import Node, free_port
from test_running import ask

RULES = CHART / 'observe/alerts.yaml'
DASHBOARD = json.loads((CHART / 'observe/dashboard.json').read_text())
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())['groups'] for rule in group['rules']]
PANELS = [panel for panel in DASHBOARD['panels'] if panel['type'] != 'row']
TESTS = ROOT / 'ops/charts/alerts_test.yaml'
# Of PromQL itself, and labels.
WORDS = set('sum max min by le rate increase histogram_quantile or and vector'.split())
# It begins with what it counts, and nobody is turned away where all is plaintext.
NEVER_HERE = {'connections_refused_total'}


def expressions():
    """(where, expression) of every alert and panel, with Grafana's variables filled in."""
    yield from ((rule['alert'], rule['expr']) for rule in ALERTS)
    for panel in PANELS:
        for target in panel['targets']:
            text = target['expr'].replace('$__rate_interval', '1m')
            yield panel['title'], text.replace('"$namespace"', '".*"').replace('"$release"', '".*"')


def metrics_of(expression):
    """The names of metrics in an expression."""
    bare = re.sub(r'by \([^)]*\)|\{[^}]*\}|\[[^]]*\]|"[^"]*"', ' ', expression)
    return set(re.findall(r'\b[a-z][a-z0-9_]+', bare)) - WORDS


def test_rules_are_rules():
    done = subprocess.run(
        ['promtool', 'check', 'rules', '--lint-fatal', RULES], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_silent_and_fires():
    done = subprocess.run(['promtool', 'test', 'rules', TESTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        each['name']: each['alert_rule_test'] for each in yaml.safe_load(TESTS.read_text())['tests']
    }
    assert set(tested) == {rule['alert'] for rule in ALERTS}
    for name, checks in tested.items():
        assert {check['alertname'] for check in checks} == {name}
        assert [bool(check.get('exp_alerts')) for check in checks] == [False, True], name


def test_every_alert_has_a_runbook():
    headings = set(re.findall(r'^## (\w+)$', (ROOT / 'docs/RUNBOOKS.md').read_text(), re.M))
    assert headings == {rule['alert'] for rule in ALERTS}
    shown = Manifests({'monitoring': {'alerts': {'enabled': True}}}).one(
        'PrometheusRule', 'aqueduct'
    )
    shown = [rule for group in shown['spec']['groups'] for rule in group['rules']]
    assert [rule['expr'] for rule in shown] == [rule['expr'] for rule in ALERTS]
    for rule in shown:
        assert rule['labels']['severity'] in ('critical', 'warning')
        assert rule['annotations']['runbook_url'].endswith(
            f'docs/RUNBOOKS.md#{rule["alert"].lower()}'
        )


def test_the_dashboard_is_what_the_chart_ships():
    manifests = Manifests({'monitoring': {'dashboard': {'enabled': True}}})
    shipped = manifests.one('ConfigMap', 'aqueduct-dashboard')['data']['aqueduct.json']
    assert json.loads(shipped) == DASHBOARD
    places = [(panel['gridPos'], panel['title']) for panel in DASHBOARD['panels']]
    for idx, (place, title) in enumerate(places):
        for other, other_title in places[:idx]:
            apart = (
                place['x'] >= other['x'] + other['w']
                or other['x'] >= place['x'] + place['w']
                or place['y'] >= other['y'] + other['h']
                or other['y'] >= place['y'] + place['h']
            )
            assert apart, f'{title} lies on {other_title}'
    assert all(panel['description'] for panel in PANELS)


@pytest.fixture(scope='module')
def node(binary, tmp_path_factory):
    """The default pods after an answer and a refusal."""
    node = Node(Manifests(values_of('default')), binary, tmp_path_factory.mktemp('node'))
    [coordinator], workers = node.of('coordinator'), node.of('worker')
    node.start(coordinator, *workers)
    for pod in workers + [coordinator]:
        pod.wait('readinessProbe')
    ask(coordinator)
    url = f'http://127.0.0.1:{coordinator.port("http")}/v1/completions'
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url, b'{"prompt": 1.5}', timeout=30)
    yield node
    node.stop()


@pytest.fixture(scope='module')
def prometheus(node, tmp_path_factory):
    """The address of a Prometheus that has scraped every pod, with the chart's labels."""
    folder, port = tmp_path_factory.mktemp('prometheus'), free_port()
    labels = {'namespace': 'prompts', 'release': 'aqueduct'}
    targets = {
        role: [f'127.0.0.1:{pod.port("monitor")}' for pod in node.of(role)]
        for role in ('coordinator', 'worker')
    }
    scraped = [
        {'job_name': f'aqueduct-{role}', 'static_configs': [{'targets': each, 'labels': labels}]}
        for role, each in targets.items()
    ]
    config = {
        'global': {'scrape_interval': '300ms', 'evaluation_interval': '300ms'},
        'rule_files': [str(RULES)],
        'scrape_configs': scraped,
    }
    (folder / 'prometheus.yml').write_text(json.dumps(config))
    command = [
        'prometheus',
        '--config.file=prometheus.yml',
        '--storage.tsdb.path=data',
        f'--web.listen-address=127.0.0.1:{port}',
    ]
    with open(folder / 'log', 'w') as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    url = f'http://127.0.0.1:{port}'
    deadline = time.monotonic() + 120
    # Two samples of everything, so that rates have values.
    while series(url, 'min(count_over_time(up[5m])) >= 2 and count(up == 1) == 3') != 1:
        assert time.monotonic() < deadline, (folder / 'log').read_text()
        time.sleep(0.1)
    yield url
    process.terminate()
    process.wait()


def get(url, path, **query):
    address = f'{url}{path}?{urllib.parse.urlencode(query)}'
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)['data']


def series(url, expression):
    """How many series an expression has now; 0 while Prometheus starts."""
    try:
        return len(get(url, '/api/v1/query', query=expression)['result'])
    except OSError:
        return 0


def test_every_metric_that_is_named_is_served(node):
    served = {'up'} | NEVER_HERE
    for pod in [*node.of('coordinator'), *node.of('worker')]:
        with urllib.request.urlopen(
            f'http://127.0.0.1:{pod.port("monitor")}/metrics', timeout=30
        ) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        served |= {sample.name for family in families for sample in family.samples}
        assert 'connections_refused' in {family.name for family in families}
    for where, expression in expressions():
        named = metrics_of(expression)
        assert named and named <= served, f'{where}: {named - served}'


def test_every_expression_has_an_answer(prometheus):
    for where, expression in expressions():
        names = metrics_of(expression)
        if where in {rule['alert'] for rule in ALERTS}:
            assert series(prometheus, expression) == 0, f'{where} fires at a cluster that is well'
        elif not names & NEVER_HERE:
            # On a machine that stood still a worker may be away for a moment.
            deadline = time.monotonic() + 120
            while series(prometheus, expression) == 0:
                assert time.monotonic() < deadline, f'{where}: {expression}'
                time.sleep(0.1)


def test_rules_are_evaluated(prometheus):
    rules = [
        rule for group in get(prometheus, '/api/v1/rules')['groups'] for rule in group['rules']
    ]
    assert len(rules) == len(ALERTS)
    assert not [rule['lastError'] for rule in rules if rule.get('lastError')]
