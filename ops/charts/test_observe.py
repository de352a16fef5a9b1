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
PANELS = [panel for panel in DASHBOARD['panels'] if panel['type'] != 'row']
TESTS = ROOT / 'ops/charts'
# Of PromQL itself, and labels.
WORDS = set(
    'sum max min count by le rate increase avg_over_time absent histogram_quantile or and vector'
    .split()
)
# It begins with what it counts, and nobody is turned away where all is plaintext.
NEVER_HERE = {'connections_refused_total'}


def groups_of(**values):
    """The groups of rules that the chart writes for its release."""
    manifests = Manifests({**values, 'monitoring': {'alerts': {'enabled': True}}})
    return manifests.one('PrometheusRule', 'aqueduct')['spec']['groups']


GROUPS = groups_of()
ALERTS = [rule for group in GROUPS for rule in group['rules']]
# Those of a file that Prometheus takes as it is, and those that name a release.
GENERAL = [rule for group in yaml.safe_load(RULES.read_text())['groups'] for rule in group['rules']]
[ABSENCE] = [group['rules'] for group in GROUPS if group['name'] == 'aqueduct-absence']


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


def promtool(*args):
    done = subprocess.run(['promtool', *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_rules(tmp_path):
    shipped = tmp_path / 'rules.yaml'
    shipped.write_text(yaml.safe_dump({'groups': GROUPS}))
    for rules in (RULES, shipped):
        promtool('check', 'rules', '--lint-fatal', rules)


def cases_of(name, alerts):
    """The file of promtool's cases, each of which has an alert be silent and then fire."""
    path = TESTS / name
    tests = yaml.safe_load(path.read_text())['tests']
    cases = {each['name']: each['alert_rule_test'] for each in tests}
    assert set(cases) == {rule['alert'] for rule in alerts}
    for alert, checks in cases.items():
        assert {check['alertname'] for check in checks} == {alert}
        assert [bool(check.get('exp_alerts')) for check in checks] == [False, True], alert
    return path


def test_every_alert_is_silent_and_fires():
    promtool('test', 'rules', cases_of('alerts_test.yaml', GENERAL))


def test_what_is_not_there_is_missed(tmp_path):
    groups = groups_of(coordinator={'replicas': 3})
    for group in groups:
        for rule in group['rules']:
            del rule['annotations']['runbook_url']
    (tmp_path / 'rules.yaml').write_text(yaml.safe_dump({'groups': groups}))
    cases = tmp_path / 'cases.yaml'
    cases.write_text(cases_of('absence_test.yaml', ABSENCE).read_text())
    promtool('test', 'rules', cases)


def test_as_many_workers_are_missed_as_there_have_to_be():
    size = {'enabled': True, 'minReplicas': 5}
    pools = {'one': {'replicas': 3}, 'two': {'autoscaling': size}}
    etcd = {'deploy': {'enabled': True}}
    rules = [rule for group in groups_of(pools=pools, etcd=etcd) for rule in group['rules']]
    [missing] = [rule for rule in rules if rule['alert'] == 'AqueductWorkersMissing']
    assert missing['expr'].endswith('< 8')


def test_absence_is_left_out_where_nobody_would_see_the_release():
    manifests = Manifests({'monitoring': {'alerts': {'enabled': True, 'absence': False}}})
    groups = manifests.one('PrometheusRule', 'aqueduct')['spec']['groups']
    assert [rule['alert'] for group in groups for rule in group['rules']] == [
        rule['alert'] for rule in GENERAL
    ]


def test_every_alert_has_a_runbook():
    headings = set(re.findall(r'^## (\w+)$', (ROOT / 'docs/RUNBOOKS.md').read_text(), re.M))
    assert headings == {rule['alert'] for rule in ALERTS}
    assert [rule['expr'] for rule in ALERTS] == [rule['expr'] for rule in GENERAL + ABSENCE]
    for rule in ALERTS:
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
    (folder / 'rules.yaml').write_text(yaml.safe_dump({'groups': GROUPS}))
    config = {
        'global': {'scrape_interval': '300ms', 'evaluation_interval': '300ms'},
        'rule_files': ['rules.yaml'],
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
        page = urllib.request.Request(
            f'http://127.0.0.1:{pod.port("monitor")}/metrics',
            headers={'accept': 'application/openmetrics-text'},
        )
        with urllib.request.urlopen(page, timeout=30) as answer:
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


def test_the_adapter_is_asked_for_what_there_is(prometheus):
    """The walk-through's configuration serves what autoscalers ask for, one value a release."""
    text = (ROOT / 'docs/KUBERNETES.md').read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r'```yaml\n(.*?)```', text, re.S)]
    [rules] = [block['rules']['external'] for block in blocks if 'rules' in block]
    served = set()
    for rule in rules:
        found = rule['seriesQuery'].split('{')[0]
        assert re.match(rule.get('name', {}).get('matches', ''), found)
        served.add(rule.get('name', {}).get('as', found))
        assert series(prometheus, rule['seriesQuery']) == 1
        labels = 'namespace="prompts",release="aqueduct"'
        assert series(prometheus, rule['metricsQuery'].replace('<<.LabelMatchers>>', labels)) == 1
    size = {'autoscaling': {'enabled': True}}
    manifests = Manifests({'etcd': {'deploy': {'enabled': True}}, 'worker': size})
    [scaler] = manifests.of('HorizontalPodAutoscaler')
    asked = {each['external']['metric']['name'] for each in scaler['spec']['metrics']}
    assert asked == served


def test_rules_are_evaluated(prometheus):
    rules = [
        rule for group in get(prometheus, '/api/v1/rules')['groups'] for rule in group['rules']
    ]
    assert len(rules) == len(ALERTS)
    assert not [rule['lastError'] for rule in rules if rule.get('lastError')]
