"""Values that cannot be meant are refused, with the name of what is wrong."""

import json
import re

import pytest
import yaml

from chart import CHART, ROOT, Manifests, Refused, flag, ours, render

SCHEMA = json.loads((CHART / 'values.schema.json').read_text())
VALUES = yaml.safe_load((CHART / 'values.yaml').read_text())

REFUSED_BY_SCHEMA = [
    ({'coordinater': {}}, 'coordinater'),
    ({'coordinator': {'replica': 1}}, 'replica'),
    ({'coordinator': {'replicas': 2}}, 'replicas'),
    ({'coordinator': {'options': {'peers': 'a=http://a:1'}}}, 'peers'),
    ({'coordinator': {'options': {'max-runing': 1}}}, 'max-runing'),
    ({'coordinator': {'options': {'api-keys': '/tmp/k'}}}, 'api-keys'),
    ({'coordinator': {'graceSeconds': '2m'}}, 'graceSeconds'),
    ({'coordinator': {'journal': {'size': 'much'}}}, 'size'),
    ({'worker': {'kind': 'DaemonSet'}}, 'kind'),
    ({'worker': {'replicas': 0}}, 'replicas'),
    ({'worker': {'poolBytes': '40Gi'}}, 'poolBytes'),
    ({'worker': {'poolBytes': 8589934592}}, 'poolBytes'),
    ({'worker': {'gpu': {'count': 2}}}, 'count'),
    ({'worker': {'gpu': {'nccl': 'maybe'}}}, 'nccl'),
    ({'worker': {'options': {'listen': '0.0.0.0:1'}}}, 'listen'),
    ({'worker': {'options': {'max-batch': 65}}}, 'max-batch'),
    ({'worker': {'options': {'max-batch': 0}}}, 'max-batch'),
    ({'worker': {'autoscaling': {'target': 'abc'}}}, 'target'),
    ({'worker': {'autoscaling': {'fillPercent': 101}}}, 'fillPercent'),
    ({'pools': {'Big_Pool': {}}}, 'Big_Pool'),
    ({'pools': {'big': {'replica': 3}}}, 'replica'),
    ({'model': {'source': 'internet'}}, 'source'),
    ({'model': {'path': 'model'}}, 'path'),
    ({'model': {'source': 'claim', 'path': '/model'}}, 'name'),
    ({'model': {'source': 'claim', 'path': '/srv', 'claim': {'name': 'a'}}}, 'path'),
    ({'model': {'source': 'hostPath', 'path': '/model'}}, 'path'),
    ({'model': {'source': 'volume', 'path': '/model'}}, 'volume'),
    ({'model': {'source': 'fetch', 'path': '/model'}}, 'image'),
    (
        {
            'model': {
                'source': 'fetch',
                'path': '/model',
                'fetch': {'image': 'a', 'volume': {'emptyDir': {}, 'ephemeral': {}}},
            }
        },
        'volume',
    ),
    ({'ipFamily': 'both'}, 'ipFamily'),
    ({'etcd': {'endpoints': ['etcd:2379']}}, 'endpoints'),
    ({'etcd': {'endpoints': [f'http://e{idx}:2379' for idx in range(17)]}}, 'endpoints'),
    ({'etcd': {'ttlSeconds': 1}}, 'ttlSeconds'),
    ({'etcd': {'ttlSeconds': 3601}}, 'ttlSeconds'),
    ({'etcd': {'prefix': '/' + 'a' * 256}}, 'prefix'),
    ({'etcd': {'prefix': 'aqueduct/'}}, 'prefix'),
    ({'etcd': {'deploy': {'replicas': 2}}}, 'replicas'),
    ({'tls': {'callers': {'clientAuth': 'sometimes'}}}, 'clientAuth'),
    ({'telemetry': {'logFormat': 'xml'}}, 'logFormat'),
    ({'telemetry': {'otlpEndpoint': 'collector:4317'}}, 'otlpEndpoint'),
    ({'telemetry': {'otlpIntervalMs': 99}}, 'otlpIntervalMs'),
    ({'image': {'digest': 'sha256:abc'}}, 'digest'),
    ({'service': {'type': 'ExternalName'}}, 'type'),
    ({'service': {'httpPort': 70000}}, 'httpPort'),
    ({'podDisruptionBudget': {'maxUnavailable': 0}}, 'maxUnavailable'),
    ({'rbac': {'operators': [{'kind': 'Robot', 'name': 'r'}]}}, 'kind'),
]

ETCD = {'deploy': {'enabled': True}}
ISSUED = {'issuer': {'name': 'acme'}}
REFUSED_BY_CHECKS = [
    ({'etcd': {**ETCD, 'endpoints': ['http://e:2379']}}, 'exclude each other'),
    ({'etcd': {'endpoints': ['https://e:2379']}}, 'etcd.tlsSecret'),
    ({'etcd': {'endpoints': ['http://e:2379'], 'tlsSecret': 'a'}}, 'etcd.tlsSecret'),
    ({'pools': {'a': {'kind': 'Deployment'}}}, 'needs etcd'),
    ({'pools': {'a': {'autoscaling': {'enabled': True}}}}, 'needs etcd'),
    ({'etcd': ETCD, 'pools': {'a': {'autoscaling': {'enabled': True, 'minReplicas': 9}}}}, 'above'),
    (
        {
            'etcd': ETCD,
            'pools': {'a': {'kind': 'Deployment', 'snapshots': {'disk': {'enabled': True}}}},
        },
        'StatefulSet',
    ),
    (
        {'worker': {'snapshots': {'disk': {'enabled': True, 'size': '10Gi'}}}},
        'pools.default.snapshots.disk.bytes is 28G (30064771072 bytes), '
        'above its size, 10Gi (10737418240 bytes)',
    ),
    (
        # Kubernetes' G is a power of 1000, the binary's one of 1024.
        {'pools': {'a': {'snapshots': {'disk': {'enabled': True, 'size': '30G'}}}}},
        'pools.a.snapshots.disk.bytes',
    ),
    (
        {'tls': {'callers': {'enabled': True, 'public': True, 'certManager': ISSUED}}},
        'tls.callers.certManager.dnsNames',
    ),
    ({'tls': {'callers': {'enabled': True}}}, 'tls.callers.secret'),
    ({'tls': {'cluster': {'enabled': True, 'workerSecret': 'a'}}}, 'coordinatorSecret'),
    ({'apiKeys': {'secret': 'a', 'file': 'b'}}, 'exclude each other'),
]


@pytest.mark.parametrize('values, word', REFUSED_BY_SCHEMA + REFUSED_BY_CHECKS)
def test_what_cannot_be_meant_is_refused(values, word):
    with pytest.raises(Refused) as refusal:
        render(values)
    assert word in str(refusal.value)


def test_every_value_has_a_schema_and_every_schema_a_value():
    def check(schema, values, path):
        schema = (
            SCHEMA['definitions'][schema['$ref'].split('/')[-1]] if '$ref' in schema else schema
        )
        known = schema.get('properties')
        if known is None or not isinstance(values, dict) or path.endswith('.options'):
            return
        assert set(values) == set(known) - {'global', 'claims'}, path or 'values.yaml'
        for name, value in values.items():
            check(known[name], value, f'{path}.{name}')

    check(SCHEMA, VALUES, '')


def test_no_object_takes_what_it_does_not_know():
    def check(schema, path):
        if isinstance(schema, dict):
            # Conditions say more of objects that are closed elsewhere.
            if schema.get('type') == 'object' and 'properties' in schema:
                assert schema.get('additionalProperties') is False, path
            for name, inner in schema.items():
                check(inner, f'{path}/{name}')

    check(SCHEMA, '')


EVERYTHING = {
    'coordinator': {'replicas': 3},
    'worker': {'gpu': {'count': 1}, 'snapshots': {'disk': {'enabled': True}}},
    'etcd': {'endpoints': ['https://e:2379'], 'tlsSecret': 'a', 'tlsClient': True},
    'tls': {
        'callers': {'enabled': True, 'secret': 'a', 'clientAuth': 'required'},
        'cluster': {'enabled': True, 'certManager': {'enabled': True}},
    },
    'apiKeys': {'secret': 'a'},
    'telemetry': {'otlpEndpoint': 'http://collector:4317'},
}


def set_by_the_chart(role, variables):
    """Flags that the chart gives a role itself, as arguments or in the environment."""
    # Without etcd the coordinator is told of workers. `threads` is an option, which the chart only
    # says where the values do not, and a whole number of processors is asked for.
    for values in (EVERYTHING, {'worker': {'resources': {'requests': {'cpu': '500m'}}}}):
        for _, _, spec in Manifests(values).templates():
            container = ours(spec)
            if container and container['args'][0] == role:
                given = {variable['name'] for variable in container['env']}
                yield from (each[2:].split('=')[0] for each in container['args'][1:])
                yield from (flag for flag, name in variables.items() if name in given)


def declared(flag):
    """Whether the source has it: a binary of AQUEDUCT_BINARY may be older or newer."""
    sources = (ROOT / 'ops/cli/src/args').glob('*.rs')
    spelt = rf'^\s*(pub\(crate\) )?{flag.replace("-", "_")}:|long = "{flag}"'
    return any(re.search(spelt, source.read_text(), re.M) for source in sources)


@pytest.mark.parametrize('role', ['coordinator', 'worker'])
def test_options_are_the_flags_that_the_chart_does_not_set_itself(
    role, flags_of, valued_flags_of, variables_of
):
    options = SCHEMA['definitions'][f'{role}Options']['properties']
    own = set(set_by_the_chart(role, variables_of(role)))
    assert own <= flags_of(role) and not own & set(options)
    wanted = flags_of(role) - own
    refused = {flag for flag in wanted - set(options) if declared(flag)}
    assert not refused, f'{role} takes flags that the schema refuses'
    unknown = {flag for flag in set(options) - wanted if not declared(flag)}
    assert not unknown, f'{role} has no such flags'
    for flag in set(options) & wanted:
        alone = options[flag]['type'] == 'boolean'
        assert alone == (flag not in valued_flags_of(role)), flag


def test_options_become_flags_as_they_were_written():
    options = {'max-running': 64, 'decay': 0.95, 'age-normalised': True, 'queue-tokens': 16777216}
    manifests = Manifests({'coordinator': {'options': options}})
    container = ours(
        manifests.one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec']
    )
    assert flag(container, 'max-running') == '64'
    assert flag(container, 'queue-tokens') == '16777216', 'not 1.6777216e+07'
    assert flag(container, 'decay') == '0.95'
    assert '--age-normalised' in container['args']
    off = Manifests({'coordinator': {'options': {'age-normalised': False}}})
    container = ours(off.one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec'])
    assert not [each for each in container['args'] if 'age' in each]


def test_bytes_have_the_units_of_the_binary():
    manifests = Manifests({'worker': {'snapshots': {'memory': '3M'}}})
    container = ours(
        manifests.one('StatefulSet', 'aqueduct-worker-default')['spec']['template']['spec']
    )
    assert flag(container, 'snapshot-bytes') == str(3 * 2**20)


def test_what_the_walk_through_says_is_rendered():
    text = (ROOT / 'docs/KUBERNETES.md').read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r'```yaml\n(.*?)```', text, re.S)]
    values = [block for block in blocks if set(block) <= set(VALUES)]
    # The other one is the configuration of an adapter.
    assert len(values) >= 6 and len(blocks) == len(values) + 1
    for block in values:
        assert Manifests(block).workloads()


def test_a_file_of_keys_becomes_a_secret():
    manifests = Manifests({'apiKeys': {'file': '{"keys":[]}'}})
    secret = manifests.one('Secret', 'aqueduct-api-keys')
    assert secret['data'] == {'keys.json': 'eyJrZXlzIjpbXX0='}
    volumes = manifests.one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec'][
        'volumes'
    ]
    assert {'secretName': 'aqueduct-api-keys', 'defaultMode': 0o440} in [
        each.get('secret') for each in volumes
    ]
    assert not manifests.of('Pod'), 'the test pod has no key'
