"""What an upgrade finds in the cluster, and leaves as it is."""

import http.server
import json
import threading

import pytest

from chart import NAME, NAMESPACE, Manifests

RESOURCES = {
    'StatefulSet': ('apps/v1', 'statefulsets'),
    'Deployment': ('apps/v1', 'deployments'),
    'HorizontalPodAutoscaler': ('autoscaling/v2', 'horizontalpodautoscalers'),
}


@pytest.fixture
def cluster():
    """Makes a kubeconfig that leads to an API server of what there is: {(kind, name): spec}."""
    servers = []

    def make(there):
        paths = {}
        for kind, (group, plural) in RESOURCES.items():
            about = {'kind': 'APIResourceList', 'apiVersion': 'v1', 'groupVersion': group}
            known = paths.setdefault(f'/apis/{group}', {**about, 'resources': []})['resources']
            known.append({'name': plural, 'kind': kind, 'namespaced': True, 'verbs': ['get']})
        for (kind, name), spec in there.items():
            group, plural = RESOURCES[kind]
            paths[f'/apis/{group}/namespaces/{NAMESPACE}/{plural}/{name}'] = {
                'apiVersion': group,
                'kind': kind,
                'metadata': {'name': name, 'namespace': NAMESPACE},
                'spec': spec,
            }
        servers.append(ApiServer(paths))
        cluster = {'server': f'http://127.0.0.1:{servers[-1].server_port}'}
        context = {'cluster': 'it', 'user': 'me', 'namespace': NAMESPACE}
        return json.dumps(
            {
                'apiVersion': 'v1',
                'kind': 'Config',
                'clusters': [{'name': 'it', 'cluster': cluster}],
                'users': [{'name': 'me', 'user': {}}],
                'contexts': [{'name': 'it', 'context': context}],
                'current-context': 'it',
            }
        )

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


class ApiServer(http.server.ThreadingHTTPServer):
    """Says what there is, of each path, and of all others that it is not."""

    def __init__(self, paths):
        super().__init__(('127.0.0.1', 0), Answer)
        self.paths = paths
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        absent = {'kind': 'Status', 'apiVersion': 'v1', 'status': 'Failure', 'code': 404}
        said = self.server.paths.get(self.path.split('?')[0])
        body = json.dumps(said or {**absent, 'reason': 'NotFound'}).encode()
        self.send_response(200 if said else 404)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


SIZED = {'enabled': True, 'minReplicas': 2, 'maxReplicas': 6}


@pytest.mark.parametrize('kind', ['StatefulSet', 'Deployment'])
@pytest.mark.parametrize(
    'live, scaled, kept',
    [
        # It comes with this upgrade, in which a field that is left out would become 1.
        (5, False, 5),
        (9, False, 6),
        (1, False, 2),
        # It is there, and will see to its bounds: what is said of its field must be what it said.
        (5, True, 5),
        (9, True, 9),
        (1, True, 1),
        (None, False, 2),
        (None, True, 2),
    ],
)
def test_an_upgrade_keeps_what_the_autoscaler_did(cluster, kind, live, scaled, kept):
    pool = {'kind': kind, 'replicas': 3, 'autoscaling': SIZED}
    values = {'etcd': {'deploy': {'enabled': True}}, 'pools': {'a': pool, 'b': {'replicas': 3}}}
    there = {('StatefulSet', f'{NAME}-worker-b'): {'replicas': 7}}
    if live is not None:
        there[kind, f'{NAME}-worker-a'] = {'replicas': live}
    if scaled:
        there['HorizontalPodAutoscaler', f'{NAME}-worker-a'] = {'maxReplicas': 6}
    manifests = Manifests(values, cluster(there))
    seen = {each['metadata']['name']: each['spec']['replicas'] for each in manifests.workloads()}
    assert seen[f'{NAME}-worker-a'] == kept
    assert seen[f'{NAME}-worker-b'] == 3, 'of a fixed size, whatever somebody made of it'


def test_who_finds_workers_by_itself_is_left_alone_when_there_are_more():
    """Without etcd the coordinator's arguments name every worker, and its pod is another one."""

    def coordinator(**values):
        return Manifests(values).one('StatefulSet', f'{NAME}-coordinator')['spec']['template']

    for etcd, same in [({}, False), ({'deploy': {'enabled': True}}, True)]:
        few, many = [coordinator(etcd=etcd, worker={'replicas': count}) for count in (2, 3)]
        assert (few == many) == same, etcd
