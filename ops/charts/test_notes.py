"""What people are told to type: the notes of a release, and the head of the runbooks."""

import re

from chart import ROOT, notes_of

ISSUED = {'issuer': {'name': 'company'}, 'dnsNames': ['prompts.example.org']}
RUNBOOKS = (ROOT / 'docs/RUNBOOKS.md').read_text()


def notes(**tls):
    return notes_of({'tls': {'callers': tls}, 'service': {'httpPort': 80}})


def test_without_certificates_and_keys_nothing_is_asked_for():
    text = notes()
    assert 'port-forward svc/aqueduct 8080:80 7070:7070 &\n  curl http://localhost:8080/' in text
    assert 'node list --server http://localhost:7070\n' in text
    assert not re.search(r'https|\.crt|KEY|authorization', text)


def test_with_certificates_the_commands_know_the_authority():
    text = notes(enabled=True, certManager=ISSUED)
    took = r"get secret aqueduct-tls -o jsonpath='\{.data.ca\\.crt\}' \| base64 -d >ca.crt\n"
    assert re.search(took, text)
    assert 'curl https://localhost:8080/v1/completions --cacert ca.crt \\\n' in text
    assert 'node list --server https://localhost:7070 --tls-ca ca.crt\n' in text
    assert 'caller.crt' not in text and 'is yours' not in text
    text = notes(enabled=True, secret='mine')
    assert 'get secret mine -o' in text and 'The Secret mine is yours' in text


def test_who_has_to_show_a_certificate_or_a_key_is_told_how():
    tls = {'callers': {'enabled': True, 'clientAuth': 'required', 'certManager': ISSUED}}
    text = notes_of({'tls': tls, 'apiKeys': {'secret': 'aqueduct-keys'}})
    assert '--cacert ca.crt --cert caller.crt --key caller.key \\\n' in text
    assert '--tls-ca ca.crt --tls-cert caller.crt --tls-key caller.key\n' in text
    assert 'export AQUEDUCT_API_KEY=' in text
    assert '-H "authorization: Bearer $AQUEDUCT_API_KEY"' in text
    assert 'AQUEDUCT_API_KEY' in notes_of({'apiKeys': {'file': '{"keys":[]}'}})


def test_a_public_certificate_is_called_by_its_own_names():
    text = notes(enabled=True, public=True, certManager=ISSUED)
    assert 'localhost' not in text and 'port-forward' not in text and '.svc' not in text
    assert 'curl https://prompts.example.org:80/v1/completions \\\n' in text
    of_system = '--tls-ca /etc/ssl/certs/ca-certificates.crt\n'
    assert f'--server https://prompts.example.org:7070 {of_system}' in text
    # Of a Secret nobody knows the names here.
    unknown = notes(enabled=True, public=True, secret='mine', certManager=ISSUED)
    assert 'https://NAME:80/' in unknown and 'prompts.example.org' not in unknown


def test_variables_are_those_of_the_binary(variables_of):
    known = set(variables_of('status').values())
    keys = notes_of({'apiKeys': {'secret': 'a'}})
    for text, least in [(keys, 1), (RUNBOOKS, 5)]:
        named = set(re.findall(r'AQUEDUCT_[A-Z_]+', text))
        assert len(named) >= least and named <= known, named - known


def test_the_runbooks_find_the_one_service_of_callers(manifests):
    """By its labels: a release whose name has no `aqueduct` in it has Services of other names."""
    [selector, labels] = re.findall(r'--field-selector (\S+) \\\n +-l (\S+)\)', RUNBOOKS)[0]
    assert selector == 'spec.clusterIP!=None' and 'svc/$RELEASE' not in RUNBOOKS
    wanted = dict(each.split('=') for each in labels.split(','))
    wanted = {key: value.replace('$RELEASE', 'aqueduct') for key, value in wanted.items()}
    found = [
        each['metadata']['name']
        for each in manifests.of('Service')
        if wanted.items() <= each['metadata']['labels'].items()
        and each['spec'].get('clusterIP') != 'None'
    ]
    assert found == ['aqueduct']
