"""Who may speak to whom, as the NetworkPolicies have it."""

import pytest

from chart import Manifests

ROLE = 'app.kubernetes.io/component'
STRANGER = {'app.kubernetes.io/name': 'other'}
APPS = {'kubernetes.io/metadata.name': 'apps'}
MONITORING = {'kubernetes.io/metadata.name': 'monitoring'}
HERE = {'kubernetes.io/metadata.name': 'prompts'}


class Network:
    """The policies of a value set, asked about one connection at a time."""

    def __init__(self, manifests):
        self.policies = [each['spec'] for each in manifests.of('NetworkPolicy')]
        pods = {labels[ROLE]: labels for _, labels, _ in manifests.templates()}
        self.pods = {'test': {**pods['coordinator'], ROLE: 'test'}, **pods, 'stranger': STRANGER}

    def allows(self, source, target, port, space=HERE):
        """Whether `source`, of a namespace with labels `space`, reaches a port of `target`."""
        source, target = self.pods[source], self.pods[target]
        return self.side('Ingress', target, source, space, port) and (
            space is not HERE or self.side('Egress', source, target, HERE, port)
        )

    def side(self, way, owner, peer, space, port):
        policies = [
            each
            for each in self.policies
            if has(owner, each['podSelector']) and way in each['policyTypes']
        ]
        if not policies:
            return True
        peers = {'Ingress': 'from', 'Egress': 'to'}[way]
        rules = [rule for policy in policies for rule in policy.get(way.lower(), [])]
        return any(admits(rule, rule.get(peers), peer, space, port) for rule in rules)


def has(labels, selector):
    return selector.get('matchLabels', {}).items() <= labels.items()


def admits(rule, peers, labels, space, port):
    ports = [each['port'] for each in rule.get('ports', [])]
    if ports and port not in ports:
        return False
    return not peers or any(is_peer(each, labels, space) for each in peers)


def is_peer(peer, labels, space):
    if 'ipBlock' in peer:
        return False
    here = (
        space == HERE if 'namespaceSelector' not in peer else has(space, peer['namespaceSelector'])
    )
    return here and has(labels, peer.get('podSelector', {}))


def test_members_reach_each_other_and_nobody_else_reaches_workers(manifests):
    network = Network(manifests)
    assert network.allows('coordinator', 'worker', 7001)
    assert network.allows('worker', 'worker', 7001)
    assert not network.allows('stranger', 'worker', 7001)
    assert not network.allows('test', 'worker', 7001)
    assert not network.allows('worker', 'coordinator', 7070)
    assert not network.allows('worker', 'stranger', 80)
    assert not network.allows('coordinator', 'stranger', 80)


def test_every_port_that_is_listened_on_is_reached_by_somebody(manifests):
    network = Network(manifests)
    sources = [(name, HERE) for name in network.pods] + [
        ('stranger', APPS),
        ('stranger', MONITORING),
    ]
    for _, labels, spec in manifests.templates():
        for port in spec['containers'][0].get('ports', []):
            reached = any(
                network.allows(source, labels[ROLE], port['containerPort'], space)
                for source, space in sources
            )
            assert reached, (labels, port)


def test_names_are_looked_up(manifests):
    network = Network(manifests)
    for role in set(network.pods) - {'stranger', 'test'}:
        assert network.allows(role, 'stranger', 53), role


@pytest.mark.parametrize('name, anybody', [('default', True), ('tls', False)])
def test_callers_are_those_of_the_values(value_set, name, anybody):
    network = Network(value_set(name))
    for port in (8080, 7070):
        assert network.allows('stranger', 'coordinator', port, APPS)
        assert network.allows('stranger', 'coordinator', port, {'a': 'b'}) == anybody
    assert network.allows('stranger', 'coordinator', 9464, MONITORING)
    assert network.allows('stranger', 'worker', 9464, {'a': 'b'}) == anybody


def test_coordinators_keep_their_journal_among_themselves(value_set):
    network = Network(value_set('ha'))
    for source in network.pods:
        assert network.allows(source, 'coordinator', 7072) == (source == 'coordinator'), source
    assert not Network(value_set('default')).allows('coordinator', 'coordinator', 7072)


def test_etcd_is_for_members(value_set):
    network = Network(value_set('ha'))
    for source, allowed in [
        ('coordinator', True),
        ('worker', True),
        ('etcd', True),
        ('stranger', False),
    ]:
        assert network.allows(source, 'etcd', 2379) == allowed, source
        assert network.allows(source, 'etcd', 2380) == (source == 'etcd'), source


def test_who_watches_reads_figures_and_nothing_else():
    watch = {'namespaceSelector': {'matchLabels': MONITORING}}
    values = {'etcd': {'deploy': {'enabled': True}}, 'networkPolicy': {'monitoring': [watch]}}
    network = Network(Manifests(values))
    for target, port in [('coordinator', 9464), ('worker', 9464), ('etcd', 2381)]:
        assert network.allows('stranger', target, port, MONITORING), target
        assert not network.allows('stranger', target, port, APPS), target
    assert not network.allows('stranger', 'etcd', 2379, MONITORING)


def test_an_etcd_elsewhere_is_reached(value_set):
    network = Network(value_set('external-etcd'))
    assert network.allows('coordinator', 'stranger', 2379) and network.allows(
        'worker', 'stranger', 2379
    )


def test_nccl_takes_ports_as_they_come(value_set):
    assert Network(value_set('gpu')).allows('worker', 'worker', 40000)
    assert not Network(value_set('gpu')).allows('stranger', 'worker', 40000)
    assert not Network(value_set('default')).allows('worker', 'worker', 40000)


def test_spans_reach_the_collector(value_set):
    assert Network(value_set('ha')).allows('worker', 'stranger', 4317)
    assert not Network(value_set('default')).allows('worker', 'stranger', 4317)


def test_models_are_fetched_where_the_values_say_so(value_set):
    assert Network(value_set('gpu')).allows('worker', 'stranger', 443)
    assert not Network(value_set('default')).allows('worker', 'stranger', 443)
