"""Runs the pods of rendered manifests as processes of this machine: no images, no isolation, but
the very arguments, environment, volumes, probes and signals that a kubelet would use."""

import http.client
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from chart import NAMESPACE, ROOT, ours

IN_IMAGE = {'/usr/share/aqueduct/model': str(ROOT / 'model')}
NAME = re.compile(r'([a-z0-9-]+)\.[a-z0-9-]+\.' + NAMESPACE + r'\.svc\.cluster\.local:(\d+)')

# What stands for the pod's own address, and for all of them. A probe of `[::]` goes to 127.0.0.1.
OWN = {'[$(POD_IP)]': '[::1]', '$(POD_IP)': '127.0.0.1'}
EVERYWHERE = {'0.0.0.0': '127.0.0.1', '[::]': '[::]'}


class Pod:
    """One container of a workload, with ports of its own."""

    def __init__(self, name, spec, folder):
        self.name, self.spec, self.folder = name, spec, folder
        self.container = spec['containers'][0]
        self.ports = {
            each['containerPort']: free_port() for each in self.container.get('ports', [])
        }
        self.process = None

    def port(self, name):
        return self.ports[
            next(each['containerPort'] for each in self.container['ports'] if each['name'] == name)
        ]

    def probe(self, kind):
        """The status that a probe of the manifest hears, or None where nobody answers."""
        asked = self.container[kind].get('httpGet')
        if asked is None:
            return self.connects(self.container[kind]['tcpSocket']['port'])
        assert asked.get('scheme', 'HTTP') == 'HTTP'
        return status(f'http://127.0.0.1:{self.port(asked["port"])}{asked["path"]}')

    def connects(self, port):
        try:
            socket.create_connection(('127.0.0.1', self.port(port)), timeout=5).close()
            return 200
        except OSError:
            return None

    def start_seconds(self):
        """How long the manifest lets it start; a test waits no less."""
        probe = self.container['startupProbe']
        return probe['periodSeconds'] * probe['failureThreshold']

    def wait(self, kind, wanted=200):
        deadline = time.monotonic() + self.start_seconds()
        while self.probe(kind) != wanted:
            assert (
                self.process.poll() is None
            ), f'{self.name} ended with {self.process.returncode}: {self.log()}'
            assert time.monotonic() < deadline, f'{self.name} {kind}: {self.log()}'
            time.sleep(0.05)

    def log(self):
        return (self.folder / 'log').read_text()[-2000:]

    def stop(self):
        """What Kubernetes does to a pod that is deleted; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.spec['terminationGracePeriodSeconds'])
        finally:
            self.process.kill()


class Node:
    """The pods of some manifests, which find each other by name."""

    def __init__(self, manifests, binary, folder, secrets=None):
        self.binary, self.folder, self.secrets = binary, pathlib.Path(folder), secrets or {}
        self.models = {}  # of roles that have another one than the repository's
        self.pods = {}
        for workload in manifests.workloads():
            for idx in range(workload['spec'].get('replicas', 1)):
                name = f'{workload["metadata"]["name"]}-{idx}'
                self.pods[name] = Pod(name, workload['spec']['template']['spec'], self.place(name))
        for pod in manifests.of('Pod'):
            name = pod['metadata']['name']
            self.pods[name] = Pod(name, pod['spec'], self.place(name))
        self.services = {each['metadata']['name']: each['spec'] for each in manifests.of('Service')}

    def place(self, name):
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder

    def of(self, role):
        return [pod for pod in self.pods.values() if role_of(pod) == role]

    def start(self, *pods):
        for pod in pods:
            command = [self.binary if ours(pod.spec) else pod.container['command'][0]]
            command += [self.here(pod, each) for each in pod.container['args']]
            with open(pod.folder / 'log', 'a') as log:
                pod.process = subprocess.Popen(
                    command, env=self.environment(pod), stdout=log, stderr=log
                )

    def stop(self):
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()

    def environment(self, pod):
        own = {
            each['name']: each['value'] for each in pod.container.get('env', []) if 'value' in each
        }
        return {'PATH': os.environ['PATH'], **own}

    def here(self, pod, text):
        """An argument as it is where all pods share one address and one file system."""
        text = text.replace('$(POD_NAME)', pod.name)
        for written, address in OWN.items():
            text = text.replace(f'{written}:7001', f'{address}:{pod.ports.get(7001)}')
        for written, address in EVERYWHERE.items():
            there = re.escape(written) + r':(\d+)'
            text = re.sub(there, lambda found: f'{address}:{pod.ports[int(found[1])]}', text)
        text = NAME.sub(lambda found: f'127.0.0.1:{self.pods[found[1]].ports[int(found[2])]}', text)
        for name, spec in self.services.items():
            for port in spec['ports'] if spec.get('clusterIP') != 'None' else []:
                there = f'127.0.0.1:{self.of("coordinator")[0].port(port["targetPort"])}'
                text = text.replace(f'{name}.{NAMESPACE}.svc.cluster.local:{port["port"]}', there)
        # All at once: where one leads may begin as another does.
        places = {**IN_IMAGE, **self.mounts(pod)}
        inside = '|'.join(re.escape(place) for place in sorted(places, key=len, reverse=True))
        return re.sub(
            f'(^|=)({inside})(/|$)', lambda found: found[1] + places[found[2]] + found[3], text
        )

    def mounts(self, pod):
        volumes = {each['name']: each for each in pod.spec.get('volumes', [])}
        return {
            each['mountPath']: self.volume(pod, volumes.get(each['name'], {'name': each['name']}))
            for each in pod.container.get('volumeMounts', [])
        }

    def volume(self, pod, volume):
        if 'secret' in volume:
            return str(self.secrets[volume['secret']['secretName']])
        if volume['name'] == 'model':
            return str(self.models.get(role_of(pod), ROOT / 'model'))
        folder = pod.folder / volume['name']
        folder.mkdir(exist_ok=True)
        return str(folder)


def role_of(pod):
    return pod.container['args'][0] if ours(pod.spec) else pod.container['name']


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return None


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(('::1', 0))
    except OSError:
        return False
    return True


# Below those that the system gives to connections, which would take one before its pod listens.
PORTS = iter(random.sample(range(20000, 32000), 12000))


def free_port():
    """A port that nobody has, and that is given once."""
    for port in PORTS:
        with socket.socket() as free:
            try:
                free.bind(('127.0.0.1', port))
                return port
            except OSError:
                pass
    raise AssertionError('every port is taken')
