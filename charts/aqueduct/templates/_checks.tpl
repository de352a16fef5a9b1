{{/* What the schema of the values cannot say. Included once, by the coordinator. */}}
{{- define "aqueduct.checks" -}}
{{- $byEtcd := include "aqueduct.byEtcd" . -}}
{{- if and .Values.etcd.endpoints .Values.etcd.deploy.enabled -}}
{{- fail "etcd.endpoints and etcd.deploy.enabled exclude each other: name an etcd, or have one" -}}
{{- end -}}
{{- range .Values.etcd.endpoints -}}
{{- if ne (hasPrefix "https://" .) (ne $.Values.etcd.tlsSecret "") -}}
{{- fail (printf "etcd.endpoints has %s: https goes with etcd.tlsSecret, and http without" .) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := include "aqueduct.pools" . | fromYaml -}}
{{- $pool := include "aqueduct.pool" (dict "root" $ "name" $name) | fromYaml -}}
{{- if and (eq $pool.kind "Deployment") (not $byEtcd) -}}
{{- fail (printf "pools.%s.kind is Deployment, whose pods have no names: it needs etcd" $name) -}}
{{- end -}}
{{- if and (eq $pool.kind "Deployment") $pool.snapshots.disk.enabled -}}
{{- fail (printf "pools.%s.snapshots.disk needs a StatefulSet: a folder belongs to one worker" $name) -}}
{{- end -}}
{{- with $pool.snapshots.disk -}}
{{- if and .enabled (gt (include "aqueduct.bytes" .bytes | int64) (include "aqueduct.quantity" .size | int64)) -}}
{{- fail (printf "pools.%s.snapshots.disk.bytes is %s (%s bytes), above its size, %s (%s bytes)" $name .bytes (include "aqueduct.bytes" .bytes) .size (include "aqueduct.quantity" .size)) -}}
{{- end -}}
{{- end -}}
{{- if and $pool.autoscaling.enabled (not $byEtcd) -}}
{{- fail (printf "pools.%s.autoscaling needs etcd: coordinators have to hear of new workers" $name) -}}
{{- end -}}
{{- if and $pool.autoscaling.enabled (gt (int $pool.autoscaling.minReplicas) (int $pool.autoscaling.maxReplicas)) -}}
{{- fail (printf "pools.%s.autoscaling.minReplicas is above maxReplicas" $name) -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls.callers -}}
{{- if and .enabled (not .secret) (not .certManager.issuer.name) -}}
{{- fail "tls.callers.enabled wants tls.callers.secret or tls.callers.certManager.issuer.name" -}}
{{- end -}}
{{- if and .enabled .public (not .secret) (not .certManager.dnsNames) -}}
{{- fail "tls.callers.public wants tls.callers.certManager.dnsNames: the certificate has no others" -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls.cluster -}}
{{- if and .enabled (not .certManager.enabled) (not (and .coordinatorSecret .workerSecret)) -}}
{{- fail "tls.cluster.enabled wants coordinatorSecret and workerSecret, or certManager.enabled" -}}
{{- end -}}
{{- end -}}
{{- with .Values.apiKeys -}}
{{- if and .secret .file -}}
{{- fail "apiKeys.secret and apiKeys.file exclude each other" -}}
{{- end -}}
{{- end -}}
{{- end -}}
