"""What is rendered is Kubernetes, holds together, and says to the binary what it understands."""

import functools
import json
import pathlib
import re
import subprocess

import jsonschema
import kubernetes_validate
import pytest

from chart import CHART, OLDEST, SETS, flag, flags, lint, ours, values_of

# It reads megabytes of definitions for every manifest otherwise.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)
# The newest whose schemas there are.
NEWEST = kubernetes_validate.latest_version()
CUSTOM = json.loads((pathlib.Path(__file__).parent / 'custom.json').read_text())
DOORS_SECONDS = 30  # in which a coordinator's doors close, after --grace-s


def test_value_sets_are_the_five():
    assert SETS == ['default', 'external-etcd', 'gpu', 'ha', 'tls']


@pytest.mark.parametrize('name', SETS)
def test_helm_lints(name):
    assert lint(values_of(name)) == []


@pytest.mark.parametrize('version', [OLDEST, NEWEST])
def test_every_manifest_fits_its_schema(manifests, version):
    for document in manifests.all:
        group = document['apiVersion'].split('/')[0]
        if group in ('monitoring.coreos.com', 'cert-manager.io'):
            jsonschema.validate(document, {**CUSTOM, '$ref': f'#/definitions/{document["kind"]}'})
        else:
            kubernetes_validate.validate(document, version, strict=True)


def test_an_unknown_field_is_an_error(value_set):
    document = json.loads(json.dumps(value_set('default').one('Service', 'aqueduct')))
    document['spec']['portz'] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, NEWEST, strict=True)


def test_names_are_unique_and_short(manifests):
    names = [(each['kind'], each['metadata']['name']) for each in manifests.all]
    assert len(names) == len(set(names))
    # A StatefulSet's name and a hash become a label of at most 63 characters.
    assert all(len(name) <= 52 for kind, name in names if kind == 'StatefulSet')


def test_arguments_are_those_of_the_binary(manifests, flags_of):
    seen = 0
    for name, _, spec in manifests.templates():
        container = ours(spec)
        if container is None:
            continue
        unknown = {key for key, _ in flags(container)} - flags_of(container['args'][0])
        assert not unknown, f'{name}: {container["args"][0]} has no {unknown}'
        seen += 1
    assert seen >= 2


def test_the_environment_is_that_of_the_binary(manifests, help_of):
    for name, _, spec in manifests.templates():
        container = ours(spec)
        for variable in (container or {}).get('env', []):
            if re.match('AQUEDUCT_|OTEL_EXPORTER|OTEL_METRIC', variable['name']):
                known = ' '.join(help_of(container['args'][0]).split())
                assert f'env: {variable["name"]}' in known, name


def test_arguments_are_those_of_etcd(value_set):
    container = value_set('ha').one('StatefulSet', 'aqueduct-etcd')['spec']['template']['spec'][
        'containers'
    ][0]
    known = subprocess.run(['etcd', '--help'], capture_output=True, text=True)
    known = set(re.findall(r'--([a-z-]+)', known.stdout + known.stderr))
    assert {key for key, _ in flags(container)} <= known


def test_secrets_are_in_no_argument_and_no_environment(manifests):
    for name, _, spec in manifests.templates():
        for container in spec.get('initContainers', []) + spec['containers']:
            assert not {key for key, _ in flags({'args': container.get('args', [])})} & {
                'api-key'
            }, name
            for key, value in flags({'args': container.get('args', [])}):
                if re.search(r'key|cert|-ca$', key):
                    assert value.startswith('/etc/aqueduct/'), f'{name} --{key}'
            for variable in container.get('env', []):
                assert not re.search('KEY|SECRET|TOKEN|PASSWORD', variable['name']), name


def test_pods_have_no_right_that_they_do_not_need(manifests):
    """Pod Security Standard `restricted`, and a root that cannot be written."""
    for name, _, spec in manifests.templates():
        pod = spec['securityContext']
        assert pod['runAsNonRoot'] and pod['runAsUser'] > 0, name
        assert pod['seccompProfile']['type'] == 'RuntimeDefault', name
        assert spec['automountServiceAccountToken'] is False, name
        assert not any(spec.get(field) for field in ('hostNetwork', 'hostPID', 'hostIPC')), name
        for container in spec.get('initContainers', []) + spec['containers']:
            context = container['securityContext']
            assert context['allowPrivilegeEscalation'] is False, name
            assert context['readOnlyRootFilesystem'] is True, name
            assert context['capabilities'] == {'drop': ['ALL']}, name
            assert container['resources']['limits']['memory'], name


def test_mounts_have_volumes_and_volumes_are_mounted(manifests):
    claims = {
        each['metadata']['name']: each['spec'].get('volumeClaimTemplates', [])
        for each in manifests.workloads()
    }
    for name, _, spec in manifests.templates():
        volumes = [each['name'] for each in spec.get('volumes', [])]
        volumes += [each['metadata']['name'] for each in claims.get(name, [])]
        containers = spec.get('initContainers', []) + spec['containers']
        mounts = {mount['name'] for each in containers for mount in each.get('volumeMounts', [])}
        assert len(volumes) == len(set(volumes)) and set(volumes) == mounts, name


def test_every_volume_has_one_source(manifests):
    for name, _, spec in manifests.templates():
        for volume in spec.get('volumes', []):
            assert len(set(volume) - {'name'}) == 1, f'{name}: {volume}'


def test_what_flags_name_is_mounted(manifests):
    for name, _, spec in manifests.templates():
        container = ours(spec)
        if container is None:
            continue
        mounted = [mount['mountPath'] for mount in container.get('volumeMounts', [])]
        for key, value in flags(container):
            if (
                (value or '').startswith('/')
                and key != 'etcd-prefix'
                and not value.startswith('/usr/')
            ):
                inside = [path for path in mounted if value == path or value.startswith(path + '/')]
                assert inside, f'{name}: --{key} {value}'


def test_whoever_leaves_has_the_time_that_it_takes(manifests):
    for workload in manifests.workloads():
        spec = workload['spec']['template']['spec']
        container = ours(spec)
        if container is None:
            continue
        sleep = container.get('lifecycle', {}).get('preStop', {}).get('sleep', {}).get('seconds', 0)
        leaving = sleep + int(flag(container, 'grace-s')) + DOORS_SECONDS
        assert spec['terminationGracePeriodSeconds'] > leaving, workload['metadata']['name']
        if container['args'][0] == 'coordinator':
            assert sleep > 0, 'Services must have let go of it before it refuses what is new'


def test_an_update_waits_until_workers_are_found(manifests):
    for workload in manifests.workloads():
        if 'worker' in workload['spec']['template']['spec']['containers'][0]['args']:
            assert workload['spec']['minReadySeconds'] >= 10, workload['metadata']['name']


def test_probes_of_all_three_kinds(manifests):
    for name, _, spec in manifests.templates():
        container = spec['containers'][0]
        if container['args'][0] == 'generate':
            continue
        ports = {port['name'] for port in container['ports']}
        for probe in ('startupProbe', 'livenessProbe', 'readinessProbe'):
            asked = container[probe].get('httpGet') or container[probe]['tcpSocket']
            assert asked['port'] in ports, f'{name} {probe}'
        if ours(spec):
            paths = [
                container[probe]['httpGet']['path'] for probe in ('livenessProbe', 'readinessProbe')
            ]
            # Draining is not ready and alive: a probe that ended it would lose what it ends.
            assert paths == ['/livez', '/readyz'], name
            patience = (
                container['livenessProbe']['periodSeconds']
                * container['livenessProbe']['failureThreshold']
            )
            assert patience >= 60, name


def test_ports_agree(manifests):
    for name, _, spec in manifests.templates():
        container = ours(spec)
        if container is None or 'ports' not in container:
            continue
        listens = {
            int(value.rsplit(':', 1)[1])
            for _, value in flags(container)
            if (value or '').startswith('0.0.0.0:')
        }
        assert listens == {port['containerPort'] for port in container['ports']}, name
    for service in manifests.of('Service'):
        for _, _, spec in manifests.selected(service['spec']['selector']):
            names = {port['name']: port['containerPort'] for port in spec['containers'][0]['ports']}
            for port in service['spec']['ports']:
                assert port['targetPort'] in names, service['metadata']['name']
                if service['spec'].get('clusterIP') == 'None':
                    assert (
                        port['port'] == names[port['targetPort']]
                    ), 'names lead past a headless port'


def test_selectors_find_their_pods(manifests):
    for workload in manifests.workloads():
        match = workload['spec']['selector']['matchLabels']
        found = [name for name, _, _ in manifests.selected(match)]
        assert found == [
            workload['metadata']['name']
        ], 'one workload must not adopt the pods of another'
        for spread in workload['spec']['template']['spec']['topologySpreadConstraints']:
            assert spread['labelSelector']['matchLabels'] == match
    for service in manifests.of('Service'):
        assert manifests.selected(service['spec']['selector']), service['metadata']['name']
    for document in manifests.of('PodDisruptionBudget', 'PodMonitor'):
        assert manifests.selected(document['spec']['selector']['matchLabels']), document[
            'metadata'
        ]['name']
    for policy in manifests.of('NetworkPolicy'):
        assert manifests.selected(policy['spec']['podSelector']['matchLabels']), policy['metadata'][
            'name'
        ]
    for monitor in manifests.of('ServiceMonitor'):
        match = monitor['spec']['selector']['matchLabels'].items()
        ports = [
            port['name']
            for each in manifests.of('Service')
            if match <= each['metadata']['labels'].items()
            for port in each['spec']['ports']
        ]
        assert [ports.count(each['port']) for each in monitor['spec']['endpoints']] == [
            1
        ], 'scraped once'


def test_a_budget_for_every_workload(manifests):
    for workload in manifests.workloads():
        labels = workload['spec']['template']['metadata']['labels'].items()
        budgets = [
            each
            for each in manifests.of('PodDisruptionBudget')
            if each['spec']['selector']['matchLabels'].items() <= labels
        ]
        assert [each['spec']['maxUnavailable'] for each in budgets] == [1], workload['metadata'][
            'name'
        ]


def test_accounts_exist_and_have_no_rights(manifests):
    accounts = {each['metadata']['name'] for each in manifests.of('ServiceAccount')}
    for workload in manifests.workloads():
        assert workload['spec']['template']['spec']['serviceAccountName'] in accounts
    subjects = [subject for each in manifests.of('RoleBinding') for subject in each['subjects']]
    assert not accounts & {subject['name'] for subject in subjects}


def test_what_is_packed(tmp_path):
    helm_python = pytest.importorskip('helm_python')
    archive = helm_python.package(CHART, destination=tmp_path)
    names = subprocess.run(
        ['tar', 'tzf', archive], capture_output=True, text=True, check=True
    ).stdout.split()
    assert 'aqueduct/values.schema.json' in names and 'aqueduct/README.md' in names
    assert not [name for name in names if '/ci/' in name]
