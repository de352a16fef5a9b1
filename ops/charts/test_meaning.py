"""What a value means is what the manifests say."""

import re

import pytest

from chart import NAMESPACE, ROOT, Manifests, flag, flags, ours


@pytest.mark.parametrize(
    'volume, source',
    [
        ({}, {'emptyDir': {'sizeLimit': '64Gi'}}),
        ({'emptyDir': {'sizeLimit': '1Gi'}}, {'emptyDir': {'sizeLimit': '1Gi'}}),
        ({'nfs': {'server': 'a', 'path': '/b'}}, {'nfs': {'server': 'a', 'path': '/b'}}),
    ],
)
def test_a_model_is_fetched_to_the_volume_of_the_values(volume, source):
    fetch = {'image': 'fetcher', 'volume': volume}
    manifests = Manifests({'model': {'source': 'fetch', 'path': '/model', 'fetch': fetch}})
    for workload in manifests.workloads():
        volumes = workload['spec']['template']['spec']['volumes']
        assert {'name': 'model', **source} in volumes


@pytest.mark.parametrize('own', [[], ['sync', '--exclude', '*.safetensors']])
def test_coordinators_may_fetch_less_of_a_model(own):
    fetch = {'image': 'fetcher', 'command': ['aws'], 'args': ['sync'], 'coordinatorArgs': own}
    manifests = Manifests({'model': {'source': 'fetch', 'path': '/model', 'fetch': fetch}})
    inits = [
        manifests.one('StatefulSet', f'aqueduct-{name}')['spec']['template']['spec'][
            'initContainers'
        ][0]
        for name in ('coordinator', 'worker-default')
    ]
    assert [init['args'] for init in inits] == [own or ['sync'], ['sync']]
    assert {**inits[0], 'args': []} == {**inits[1], 'args': []}


@pytest.mark.parametrize(
    'pool, threads',
    [
        ({'resources': {'requests': {'cpu': '8'}}}, '8'),
        ({'resources': {'requests': {'cpu': 12}}}, '12'),
        ({'resources': {'requests': {'cpu': '16000m'}}}, '16'),
        ({}, '1'),
        ({'resources': {'requests': {'cpu': '1500m'}}}, None),
        ({'resources': {'requests': {'cpu': '800m'}}}, None),
        ({'resources': {'requests': {'cpu': 0.5}}}, None),
        ({'resources': {'requests': {'cpu': '0'}}}, None),
        ({'resources': {'requests': {'cpu': None}}}, None),
        # What it may have at most it sees by itself.
        ({'resources': {'requests': {'cpu': '8'}, 'limits': {'cpu': '8'}}}, None),
        ({'gpu': {'count': 1}}, None),
        ({'options': {'threads': 3}}, '3'),
        ({'options': {'threads': 0}}, '0'),
    ],
)
def test_a_worker_has_threads_for_the_processors_that_it_asks_for(pool, threads):
    # One pool says nothing of another.
    manifests = Manifests({'pools': {'a': pool, 'b': {'resources': {'requests': {'cpu': '2'}}}}})
    seen = []
    for name in 'ab':
        spec = manifests.one('StatefulSet', f'aqueduct-worker-{name}')['spec']['template']['spec']
        seen.append([value for key, value in flags(ours(spec)) if key == 'threads'])
    assert seen == [[threads] if threads else [], ['2']]


def test_a_coordinator_has_room_for_the_bodies_that_it_reads_at_once():
    """As they come, parsed, and as what is made of them."""
    limits = (ROOT / 'proto/core/src/limits.rs').read_text()
    [mib] = re.findall(r'PROMPT_BYTES_MAX: usize = (\d+) << 20;', limits)
    [times] = re.findall(r'BODIES_BYTES_MAX: usize = (\d+) \* PROMPT_BYTES_MAX;', limits)
    spec = Manifests({}).one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec']
    limit = ours(spec)['resources']['limits']['memory']
    assert limit.endswith('Gi') and int(limit[:-2]) * 1024 > 3 * int(mib) * int(times)


def test_a_budget_of_the_values_is_one_of_workers():
    """Two coordinators of three at once would leave no majority, nor would members of etcd."""
    for most in (2, '50%'):
        etcd = {'deploy': {'enabled': True, 'replicas': 3}}
        budget = {'maxUnavailable': most}
        every = {'coordinator': {'replicas': 3}, 'etcd': etcd, 'podDisruptionBudget': budget}
        budgets = {
            each['metadata']['name']: each['spec']['maxUnavailable']
            for each in Manifests(every).of('PodDisruptionBudget')
        }
        assert budgets == {
            'aqueduct-coordinator': 1,
            'aqueduct-etcd': 1,
            'aqueduct-worker-default': most,
        }


def test_coordinators_are_told_the_names_of_all_workers(value_set):
    manifests = value_set('default')
    container = ours(
        manifests.one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec']
    )
    pool = manifests.one('StatefulSet', 'aqueduct-worker-default')
    service = manifests.one('Service', pool['spec']['serviceName'])
    assert service['spec']['clusterIP'] == 'None' and service['spec']['publishNotReadyAddresses']
    pods = [f'aqueduct-worker-default-{idx}' for idx in range(pool['spec']['replicas'])]
    host = f'{service["metadata"]["name"]}.{NAMESPACE}.svc.cluster.local:7001'
    expected = [f'http://{pod}.{host}' for pod in pods]
    assert [value for key, value in flags(container) if key == 'worker'] == expected
    worker = ours(pool['spec']['template']['spec'])
    assert [flag(worker, 'advertise').replace('$(POD_NAME)', pod) for pod in pods] == expected


def test_pools_differ_only_in_what_they_say(value_set):
    manifests = value_set('gpu')
    h100, spot = [
        manifests.one('StatefulSet', f'aqueduct-worker-{pool}')['spec'] for pool in ('h100', 'spot')
    ]
    for spec in (h100, spot):
        pod = spec['template']['spec']
        worker = ours(pod)
        assert worker['resources']['limits']['nvidia.com/gpu'] == 1
        assert flag(worker, 'device') == 'cuda:0' and pod['runtimeClassName'] == 'nvidia'
        assert pod['nodeSelector'] == {'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3'}
    assert flag(ours(spot['template']['spec']), 'max-batch') == '16'
    assert flag(ours(h100['template']['spec']), 'max-batch') is None
    assert (h100['replicas'], spot['replicas']) == (4, 2)
    assert len(spot['template']['spec']['tolerations']) == 2
    # Weights are fetched into a volume that only the init container may write.
    init, main = h100['template']['spec']['initContainers'][0], ours(h100['template']['spec'])
    writable = [
        not mount.get('readOnly')
        for each in (init, main)
        for mount in each['volumeMounts']
        if mount['name'] == 'model'
    ]
    assert writable == [True, False]


@pytest.mark.parametrize(
    'field, general, own',
    [
        ('nodeSelector', {'kind': 'big'}, {'kind': 'small'}),
        ('nodeSelector', {'kind': 'big'}, {}),
        ('affinity', {'nodeAffinity': {}}, {'podAntiAffinity': {}}),
        ('affinity', {'nodeAffinity': {}}, {}),
        ('tolerations', [{'key': 'gpu', 'operator': 'Exists'}], []),
    ],
)
def test_a_pool_says_in_full_where_it_runs(field, general, own):
    pools = {'here': {field: own}, 'there': {}}
    manifests = Manifests({'worker': {field: general}, 'pools': pools})
    seen = [
        manifests.one('StatefulSet', f'aqueduct-worker-{pool}')['spec']['template']['spec']
        for pool in pools
    ]
    # What is empty is left out.
    assert [spec.get(field, type(own)()) for spec in seen] == [own, general]


def test_tls_is_on_every_plane(value_set):
    manifests = value_set('tls')
    coordinator = ours(
        manifests.one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec']
    )
    worker = ours(
        manifests.one('StatefulSet', 'aqueduct-worker-default')['spec']['template']['spec']
    )
    assert flag(coordinator, 'tls-client-auth') == 'required'
    assert flag(coordinator, 'api-keys') == '/etc/aqueduct/api-keys/keys.json'
    assert all(value.startswith('https://') for key, value in flags(coordinator) if key == 'worker')
    assert flag(worker, 'advertise').startswith('https://')
    for container in (coordinator, worker):
        assert all(flag(container, f'cluster-tls-{part}') for part in ('cert', 'key', 'ca'))
    names = {
        each['metadata']['name']: each['spec'].get('dnsNames')
        for each in manifests.of('Certificate')
    }
    assert names['aqueduct-coordinator-cluster-tls'] == ['coordinator.aqueduct']
    assert names['aqueduct-worker-cluster-tls'] == ['worker.aqueduct']
    assert {'aqueduct.prompts.svc', 'prompts.example.org'} <= set(names['aqueduct-tls'])
    made = {each['spec']['secretName'] for each in manifests.of('Certificate')}
    used = {
        volume['secret']['secretName']
        for _, _, spec in manifests.templates()
        for volume in spec.get('volumes', [])
        if 'secret' in volume
    }
    assert used - made == {'aqueduct-keys'}, 'everything else is made by cert-manager'


def callers(**values):
    return Manifests({'tls': {'callers': {'enabled': True, **values}}})


def test_the_test_begins_without_an_authority_too():
    """A pod that waits for a key of a Secret never starts; one without the file says so."""
    pod = callers(secret='mine').one('Pod', 'aqueduct-test')['spec']
    assert flag(ours(pod), 'tls-ca') == '/etc/aqueduct/tls/ca.crt'
    [volume] = pod['volumes']
    [source] = volume['projected']['sources']
    assert source['secret']['name'] == 'mine' and source['secret']['optional'] is True


def test_a_public_certificate_has_no_name_of_the_cluster():
    manager = {'issuer': {'name': 'acme'}, 'dnsNames': ['prompts.example.org']}
    private, public = callers(certManager=manager), callers(certManager=manager, public=True)
    names = [
        each.one('Certificate', 'aqueduct-tls')['spec']['dnsNames'] for each in (private, public)
    ]
    assert 'aqueduct.prompts.svc' in names[0] and names[1] == ['prompts.example.org']
    assert not public.of('Pod'), 'there is no name by which it could ask'
    where = 'https://prompts.example.org:7070'
    pod = callers(secret='mine', public=True, testServer=where).one('Pod', 'aqueduct-test')['spec']
    assert flag(ours(pod), 'server') == where and 'volumes' not in pod
    assert flag(ours(pod), 'tls-ca') == '/etc/ssl/certs/ca-certificates.crt'


def test_a_certificate_of_the_chart_has_the_names_that_callers_use():
    manager = {'issuer': {'name': 'company'}, 'dnsNames': ['localhost', 'prompts.example.org']}
    manifests = callers(certManager=manager)
    spec = manifests.one('Certificate', 'aqueduct-tls')['spec']
    names = spec['dnsNames']
    assert len(names) == len(set(names)) and spec['ipAddresses'] == ['127.0.0.1']
    public = callers(certManager=manager, public=True).one('Certificate', 'aqueduct-tls')['spec']
    assert public['dnsNames'] == manager['dnsNames'] and 'ipAddresses' not in public

    def has(host):
        return host in names or '*.' + host.split('.', 1)[1] in names

    pods = [f'aqueduct-coordinator-{idx}.aqueduct-coordinator' for idx in range(3)]
    for host in ['aqueduct', *pods]:
        for rest in ('', '.svc', '.svc.cluster.local'):
            assert has(f'{host}.{NAMESPACE}{rest}'), host + rest
    # Those that the walk-through calls by, and what is at the end of a forwarded port.
    text = (ROOT / 'docs/KUBERNETES.md').read_text()
    called = set(re.findall(r'https?://([a-z0-9.-]+):(?:7070|8080)', text))
    assert len(called) >= 4 and all(has(host) for host in called), called


def test_another_number_of_etcd_s_members_is_another_etcd():
    seen = []
    for replicas in (1, 3, 5):
        manifests = Manifests({'etcd': {'deploy': {'enabled': True, 'replicas': replicas}}})
        spec = manifests.one('StatefulSet', 'aqueduct-etcd')['spec']['template']['spec']
        named = ('initial-cluster-token', 'data-dir')
        seen.append([flag(spec['containers'][0], name) for name in named])
    tokens, folders = zip(*seen)
    assert len(set(tokens)) == len(set(folders)) == 3
    assert all(folder.startswith('/var/lib/etcd/') for folder in folders)


def test_figures_that_are_pushed_say_whose_they_are(value_set):
    seen = 0
    for name, _, spec in value_set('ha').templates():
        for variable in (ours(spec) or {}).get('env', []):
            if variable['name'] == 'OTEL_RESOURCE_ATTRIBUTES':
                said = dict(each.split('=') for each in variable['value'].split(','))
                whose = {'namespace': NAMESPACE, 'release': 'aqueduct'}
                assert whose.items() <= said.items(), name
                assert said['k8s.namespace.name'] == NAMESPACE, name
                # Prometheus would put it before the job, by which alerts go.
                assert 'service.namespace' not in said, name
                seen += 1
    assert seen == 2


def test_who_comes_and_goes_registers(value_set):
    for name, url in [
        ('external-etcd', 'https://etcd-0.example.org:2379,https://etcd-1.example.org:2379'),
        ('ha', None),
    ]:
        manifests = value_set(name)
        for each, _, spec in manifests.templates():
            container = ours(spec)
            if container is None or container['args'][0] == 'generate':
                continue
            members = ','.join(
                f'http://aqueduct-etcd-{idx}.aqueduct-etcd.{NAMESPACE}.svc.cluster.local:2379'
                for idx in range(3)
            )
            assert flag(container, 'etcd') == (url or members), each
            assert flag(container, 'worker') is None


def test_coordinators_know_each_other(value_set):
    manifests = value_set('ha')
    workload = manifests.one('StatefulSet', 'aqueduct-coordinator')['spec']
    service = manifests.one('Service', workload['serviceName'])
    assert workload['podManagementPolicy'] == 'Parallel', 'none is ready before there is a majority'
    assert service['spec']['publishNotReadyAddresses'], 'nor could it be found'
    container = ours(workload['template']['spec'])
    pods = [f'aqueduct-coordinator-{idx}' for idx in range(workload['replicas'])]
    host = f'{workload["serviceName"]}.{NAMESPACE}.svc.cluster.local'
    assert flag(container, 'peers').split(',') == [
        f'{pod}=https://{pod}.{host}:7072' for pod in pods
    ]
    assert flag(container, 'id') == '$(POD_NAME)'
    assert flag(container, 'advertise-http') == f'http://$(POD_NAME).{host}:8080'
    assert flag(container, 'advertise-grpc') == f'http://$(POD_NAME).{host}:7070'
    alone = ours(
        value_set('default').one('StatefulSet', 'aqueduct-coordinator')['spec']['template']['spec']
    )
    assert flag(alone, 'peers') is None


def test_the_queue_says_how_many_workers(value_set):
    manifests = value_set('external-etcd')
    [scaler] = manifests.of('HorizontalPodAutoscaler')
    target = scaler['spec']['scaleTargetRef']
    workload = manifests.one(target['kind'], target['name'])
    # Without a cluster to look at; what an upgrade finds there is in test_upgrade.py.
    assert workload['spec']['replicas'] == scaler['spec']['minReplicas'] == 1
    metrics = [each['external'] for each in scaler['spec']['metrics']]
    labels = {'namespace': NAMESPACE, 'release': 'aqueduct'}
    assert [each['metric']['selector']['matchLabels'] for each in metrics] == [labels, labels]
    assert [(each['metric']['name'], each['target']) for each in metrics] == [
        ('aqueduct_requests', {'type': 'AverageValue', 'averageValue': '2'}),
        ('kv_cache_usage_perc', {'type': 'Value', 'value': '700m'}),
    ]
    assert flag(ours(workload['spec']['template']['spec']), 'advertise') == 'http://$(POD_IP):7001'


def test_pools_that_are_sized_share_the_requests():
    size = {'enabled': True, 'target': 3, 'fillPercent': 0, 'selector': {'tier': 'a'}}
    pools = {'one': {'autoscaling': size}, 'two': {'autoscaling': size}, 'fixed': {}}
    manifests = Manifests({'etcd': {'deploy': {'enabled': True}}, 'pools': pools})
    for scaler in manifests.of('HorizontalPodAutoscaler'):
        [metric] = scaler['spec']['metrics']
        # Each sees all requests, and is for half of them.
        assert metric['external']['target']['averageValue'] == '6'
        assert metric['external']['metric']['selector']['matchLabels']['tier'] == 'a'
    assert len(manifests.of('HorizontalPodAutoscaler')) == 2


def test_the_family_of_addresses_is_that_of_the_values():
    etcd, pools = {'deploy': {'enabled': True}}, {'a': {'kind': 'Deployment'}}
    manifests = Manifests({'ipFamily': 'IPv6', 'etcd': etcd, 'pools': pools})
    listens = 0
    for name, _, spec in manifests.templates():
        arguments = spec['containers'][0]['args']
        assert not [each for each in arguments if '0.0.0.0' in each], name
        listens += sum('[::]:' in each for each in arguments)
    # Three of the coordinator, two of the worker, three of etcd.
    assert listens == 8
    worker = ours(manifests.one('Deployment', 'aqueduct-worker-a')['spec']['template']['spec'])
    assert flag(worker, 'advertise') == 'http://[$(POD_IP)]:7001'
