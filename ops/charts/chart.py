"""Charts as Helm renders them, and what Kubernetes would make of the manifests."""

import pathlib
import shutil
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).parents[2]
CHART = ROOT / 'charts/aqueduct'
NAME, NAMESPACE = 'aqueduct', 'prompts'
OLDEST = '1.30.0'  # that Chart.yaml admits
ROLES = ('coordinator', 'worker', 'generate')
SETS = sorted(path.name.removesuffix('-values.yaml') for path in CHART.glob('ci/*-values.yaml'))


class Refused(Exception):
    """Helm will not have these values."""


def values_of(name):
    return yaml.safe_load((CHART / f'ci/{name}-values.yaml').read_text()) or {}


def render(values, cluster=None):
    """All documents of the chart; `Refused` where the schema or a check is broken. Where templates
    look for what there is, that is what `cluster`, a kubeconfig, leads to, or nothing."""
    by_helm = cluster is None and shutil.which('helm')
    texts = by_command(values) if by_helm else by_package(values, cluster)
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def by_command(values):
    more = ['--namespace', NAMESPACE, '--kube-version', OLDEST]
    done = helm(values, 'template', NAME, CHART, *more)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return [done.stdout]


def helm(values, *args):
    with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
        yaml.safe_dump(values, file)
        file.flush()
        command = ['helm', *args, '--values', file.name]
        return subprocess.run(command, capture_output=True, text=True)


def by_package(values, cluster=None):
    rendered = files_of(values, cluster)
    return [text for path, text in rendered.items() if path.endswith('.yaml')]


def files_of(values, cluster=None):
    """What becomes of each file of the templates, NOTES.txt too, which `helm template` keeps."""
    import helm_python

    release = {'name': NAME, 'namespace': NAMESPACE}
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(values)
            if cluster is None:
                return chart.render(values, **release)
            with helm_python.Config(kubeconfig_content=cluster, namespace=NAMESPACE) as config:
                return config.render(chart, values, **release, is_upgrade=True)
    except helm_python.HelmError as error:
        raise Refused(str(error)) from error


def notes_of(values):
    """What Helm says to whoever installs."""
    return files_of(values)['aqueduct/templates/NOTES.txt']


def lint(values):
    """What `helm lint` complains of."""
    if shutil.which('helm'):
        done = helm(values, 'lint', '--strict', CHART)
        return [done.stdout] if done.returncode else []
    import helm_python

    report = helm_python.lint(CHART, values, strict=True)
    return [message for message in report['messages'] if message['severity'] > 1] + report['errors']


class Manifests:
    """The documents of one value set, and the questions that tests ask of them."""

    def __init__(self, values, cluster=None):
        self.all = render(values, cluster)

    def of(self, *kinds):
        return [document for document in self.all if document['kind'] in kinds]

    def one(self, kind, name):
        found = [each for each in self.of(kind) if each['metadata']['name'] == name]
        assert len(found) == 1, f'{len(found)} {kind} called {name}'
        return found[0]

    def workloads(self):
        return self.of('StatefulSet', 'Deployment')

    def templates(self):
        """(name, labels, pod spec) of every pod that may come to be."""
        for workload in self.workloads():
            template = workload['spec']['template']
            yield workload['metadata']['name'], template['metadata']['labels'], template['spec']
        for pod in self.of('Pod'):
            yield pod['metadata']['name'], pod['metadata']['labels'], pod['spec']

    def selected(self, match_labels):
        """The templates whose pods have these labels."""
        return [each for each in self.templates() if match_labels.items() <= each[1].items()]


def ours(spec):
    """The container that runs the binary, if there is one."""
    return next((each for each in spec['containers'] if each['args'][0] in ROLES), None)


def flags(container):
    """Its arguments as (flag, value); what has no dashes is left out."""
    named = [each for each in container['args'] if each.startswith('--')]
    return [tuple(each[2:].split('=', 1)) if '=' in each else (each[2:], None) for each in named]


def flag(container, name):
    return next((value for key, value in flags(container) if key == name), None)
