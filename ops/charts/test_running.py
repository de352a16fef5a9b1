"""The pods of the manifests run, are ready when they should be, answer, and leave in time."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from chart import ROOT, Manifests, notes_of, values_of
from node import Node, has_ipv6, status

WORDS = 'I went to the woods because'


@pytest.fixture
def nodes(binary, tmp_path):
    running = []

    def make(values, secrets=None):
        running.append(Node(Manifests(values), binary, tmp_path / f'node{len(running)}', secrets))
        return running[-1]

    yield make
    for node in running:
        node.stop()


def ask(coordinator):
    body = json.dumps({'prompt': WORDS, 'max_tokens': 4, 'temperature': 0}).encode()
    url = f'http://127.0.0.1:{coordinator.port("http")}/v1/completions'
    request = urllib.request.Request(url, body, {'content-type': 'application/json'})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)['choices'][0]['text']


def test_the_default_values_serve(nodes):
    node = nodes(values_of('default'))
    [coordinator], workers = node.of('coordinator'), node.of('worker')
    node.start(coordinator)
    coordinator.wait('startupProbe')
    assert coordinator.probe('livenessProbe') == 200
    assert coordinator.probe('readinessProbe') == 503, 'nobody is there who could compute'
    node.start(*workers)
    for pod in workers + [coordinator]:
        pod.wait('readinessProbe')
    first = ask(coordinator)

    # `helm test` is a caller like any other.
    [test] = node.of('generate')
    node.start(test)
    assert test.process.wait(300) == 0, test.log()
    assert test.log().strip()

    # A rolling restart: who is deleted leaves by itself, and what replaces it is found again.
    assert workers[0].stop() == 0, workers[0].log()
    node.start(workers[0])
    workers[0].wait('readinessProbe')
    assert coordinator.stop() == 0, coordinator.log()
    node.start(coordinator)
    coordinator.wait('readinessProbe')
    assert ask(coordinator) == first
    assert [pod.stop() for pod in [coordinator, *workers]] == [0, 0, 0]


def test_tls_and_keys_need_nothing_of_probes(nodes, binary, tmp_path):
    authority = Authority(tmp_path / 'pki')
    keys = tmp_path / 'keys'
    keys.mkdir()
    new = [binary, 'keys', 'new', '--name', 'alice', '--api-keys', keys / 'keys.json']
    key = subprocess.run(new, capture_output=True, text=True, check=True).stdout.split()[0]
    values = values_of('tls') | {'model': {}, 'coordinator': {'replicas': 3}}
    named = Manifests(values).one('Certificate', 'aqueduct-tls')['spec']
    names = [f'DNS:{name}' for name in named['dnsNames']]
    names += [f'IP:{address}' for address in named['ipAddresses']]
    secrets = {
        'aqueduct-tls': authority.sign('server', ','.join(names)),
        'aqueduct-coordinator-cluster-tls': authority.sign(
            'coordinator', 'DNS:coordinator.aqueduct'
        ),
        'aqueduct-worker-cluster-tls': authority.sign('worker', 'DNS:worker.aqueduct'),
        'aqueduct-keys': keys,
    }
    node = nodes(values, secrets)
    coordinators, workers = node.of('coordinator'), node.of('worker')
    node.start(*coordinators, *workers)
    for pod in workers + coordinators:
        pod.wait('readinessProbe')
    for port in (coordinators[0].port('http'), workers[0].port('worker')):
        assert status(f'http://127.0.0.1:{port}/livez') is None, 'plaintext'

    caller = authority.sign('caller', 'DNS:alice')
    urls = ','.join(f'https://localhost:{pod.port("grpc")}' for pod in coordinators)
    asks = [binary, 'generate', '--server', urls, '--tls-ca', caller / 'ca.crt', '--max-tokens=4']
    shown = ['--tls-cert', caller / 'tls.crt', '--tls-key', caller / 'tls.key']
    for more, environment, code in [
        ([], {'AQUEDUCT_API_KEY': key}, 3),
        (shown, {}, 2),
        (shown, {'AQUEDUCT_API_KEY': key}, 0),
    ]:
        done = subprocess.run(
            [*asks, *more, WORDS], env=environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
    # As the notes of the release have it, at the end of a forwarded port.
    for name in ('caller.crt', 'caller.key'):
        shutil.copy(caller / name.replace('caller', 'tls'), caller / name)
    [said] = re.findall(r'^  aqueduct (node list .*)$', notes_of(values), re.M)
    said = said.replace(':7070', f':{coordinators[0].port("grpc")}')
    listed = subprocess.run(
        [binary, *said.split()],
        cwd=caller,
        env={'AQUEDUCT_API_KEY': key},
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0 and listed.stdout.count('up') == 2, listed.stderr
    assert [pod.stop() for pod in [*coordinators, *workers]] == [0, 0, 0, 0, 0]


def test_coordinators_need_no_weights(nodes, tmp_path):
    """Which `model.fetch.coordinatorArgs` may leave out."""
    fetch = {'source': 'fetch', 'path': '/model', 'fetch': {'image': 'fetcher'}}
    node = nodes({'model': fetch})
    without = shutil.ignore_patterns('*.safetensors')
    node.models['coordinator'] = shutil.copytree(
        ROOT / 'model', tmp_path / 'without', ignore=without
    )
    [coordinator], workers = node.of('coordinator'), node.of('worker')
    node.start(coordinator, *workers)
    for pod in workers + [coordinator]:
        pod.wait('readinessProbe')
    assert ask(coordinator)
    assert [pod.stop() for pod in [coordinator, *workers]] == [0, 0, 0]


def test_three_coordinators_survive_the_loss_of_one(nodes):
    node = nodes({'coordinator': {'replicas': 3}})
    coordinators, workers = node.of('coordinator'), node.of('worker')
    node.start(*coordinators, *workers)
    for pod in coordinators + workers:
        pod.wait('readinessProbe')
    leader, first = agreed(coordinators)
    [test] = node.of('generate')
    node.start(test)
    assert test.process.wait(300) == 0, test.log()
    leader.process.kill()
    leader.process.wait()
    _, again = agreed([pod for pod in coordinators if pod is not leader])
    assert again == first
    node.start(leader)
    leader.wait('readinessProbe')
    assert [pod.stop() for pod in [*coordinators, *workers]] == [0, 0, 0, 0, 0]


def agreed(coordinators):
    """Who leads, once all others say so, and what each of them answers."""
    deadline = time.monotonic() + coordinators[0].start_seconds()
    while time.monotonic() < deadline:
        known = [led(pod) for pod in coordinators]
        leaders = [pod for pod, (leads, _) in zip(coordinators, known) if leads]
        if len(leaders) == 1:
            here = f'127.0.0.1:{leaders[0].port("http")}'
            if all(leads or place == here for leads, place in known):
                answers = {ask(pod) for pod in coordinators}
                assert len(answers) == 1, answers
                return leaders[0], answers.pop()
        time.sleep(0.05)
    raise AssertionError([pod.log() for pod in coordinators])


def led(coordinator):
    """Whether a coordinator leads, and where it says that another one does."""
    url = f'http://127.0.0.1:{coordinator.port("http")}/leader'
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            health = json.load(answer)
    except urllib.error.HTTPError as error:
        health = json.load(error)
    place = health.get('leader', {}).get('http', '')
    return health['role'] == 'leader', urllib.parse.urlsplit(place).netloc


def test_workers_of_every_kind_register_in_the_chart_s_own_etcd(nodes):
    pools = {'named': {'replicas': 1}, 'elastic': {'kind': 'Deployment', 'replicas': 1}}
    deploy = {'enabled': True, 'replicas': 3}
    node = nodes({'etcd': {'deploy': deploy}, 'pools': pools})
    [coordinator], workers, members = node.of('coordinator'), node.of('worker'), node.of('etcd')
    assert (len(workers), len(members)) == (2, 3)
    node.start(*members)
    for member in members:
        member.wait('readinessProbe')
    node.start(coordinator, *workers)
    for pod in workers + [coordinator]:
        pod.wait('readinessProbe')
    assert ask(coordinator)
    assert [pod.stop() for pod in [coordinator, *workers]] == [0, 0, 0]


def test_one_member_of_etcd_becomes_three_of_one_cluster(nodes):
    """As `helm upgrade` does it: the volume of the first is that of the one there was."""
    alone = nodes({'etcd': {'deploy': {'enabled': True}}})
    [member] = alone.of('etcd')
    alone.start(member)
    member.wait('readinessProbe')
    before = members_of(member)
    assert len(before[1]) == 1
    member.stop()

    node = nodes({'etcd': {'deploy': {'enabled': True, 'replicas': 3}}})
    members = node.of('etcd')
    shutil.copytree(member.folder / 'data', members[0].folder / 'data')
    # One after the other, as a StatefulSet updates them: none waits for a majority.
    for each in reversed(members):
        node.start(each)
        each.wait('readinessProbe')
    clusters = [members_of(each) for each in members]
    assert clusters[0] != before and len(clusters[0][1]) == 3
    assert clusters == [clusters[0]] * 3, 'each of them knows the same three'


def members_of(member):
    """The cluster that a member of etcd belongs to, and who else does."""
    url = f'http://127.0.0.1:{member.port("client")}/v3/cluster/member/list'
    with urllib.request.urlopen(url, b'{}', timeout=30) as answer:
        said = json.load(answer)
    return said['header']['cluster_id'], sorted(each['ID'] for each in said['members'])


@pytest.mark.skipif(not has_ipv6(), reason='this machine has no IPv6')
def test_pods_whose_addresses_are_of_ipv6_find_each_other(nodes):
    etcd, pools = {'deploy': {'enabled': True}}, {'a': {'kind': 'Deployment', 'replicas': 1}}
    node = nodes({'ipFamily': 'IPv6', 'etcd': etcd, 'pools': pools})
    [coordinator], [worker], [member] = node.of('coordinator'), node.of('worker'), node.of('etcd')
    node.start(member)
    member.wait('readinessProbe')
    node.start(coordinator, worker)
    for pod in (worker, coordinator):
        pod.wait('readinessProbe')
    assert ask(coordinator)
    arguments = [node.here(worker, each) for each in worker.container['args']]
    assert f'--advertise=http://[::1]:{worker.port("worker")}' in arguments
    assert [pod.stop() for pod in (coordinator, worker)] == [0, 0]


class Authority:
    """Certificates as Secrets have them: tls.crt, tls.key, ca.crt."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.openssl(
            'req',
            '-x509',
            *NEW_KEY,
            '-days',
            '1',
            '-subj',
            '/CN=test',
            '-keyout',
            'ca.key',
            '-out',
            'ca.crt',
        )

    def sign(self, name, names):
        secret = self.folder / name
        secret.mkdir()
        (secret / 'names').write_text(f'subjectAltName={names}')
        self.openssl(
            'req',
            *NEW_KEY,
            '-subj',
            f'/CN={name}',
            '-keyout',
            f'{name}/tls.key',
            '-out',
            f'{name}/request',
        )
        self.openssl(
            'x509',
            '-req',
            '-in',
            f'{name}/request',
            '-CA',
            'ca.crt',
            '-CAkey',
            'ca.key',
            '-CAcreateserial',
            '-days',
            '1',
            '-extfile',
            f'{name}/names',
            '-out',
            f'{name}/tls.crt',
        )
        (secret / 'ca.crt').write_text((self.folder / 'ca.crt').read_text())
        return secret

    def openssl(self, *args):
        subprocess.run(['openssl', *args], cwd=self.folder, check=True, capture_output=True)


NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']
