{{/* Command lines. Each is a YAML list of --flag=value; what every role has in common comes first. */}}

{{/* Every address of the pod; those of IPv4 too where the family is IPv6 and there are any. */}}
{{- define "aqueduct.everywhere" -}}{{ ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") }}{{- end -}}

{{/* The pod's own address as the host of a URL. */}}
{{- define "aqueduct.podHost" -}}{{ ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") }}{{- end -}}

{{- define "aqueduct.byEtcd" -}}
{{- if or .Values.etcd.endpoints .Values.etcd.deploy.enabled }}true{{ end -}}
{{- end -}}

{{/* Options of the values as flags. Whole numbers come as floats from YAML; `true` is a flag alone. */}}
{{- define "aqueduct.options" -}}
{{- range $flag, $value := . }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ $flag }}
{{- end }}
{{- else if eq (toString (floor $value)) (toString $value) }}
- --{{ $flag }}={{ int64 $value }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Bytes of "28G": the units of the binary are powers of 1024. */}}
{{- define "aqueduct.bytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $shifts := dict "K" 10 "M" 20 "G" 30 "T" 40 -}}
{{- range until (get $shifts (regexFind "[KMGT]" .) | int) -}}
{{- $number = mul $number 2 -}}
{{- end -}}
{{- $number -}}
{{- end -}}

{{/* Bytes of "32Gi", as Kubernetes counts: G is a power of 1000. */}}
{{- define "aqueduct.quantity" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $base := ternary 1024 1000 (hasSuffix "i" .) -}}
{{- $powers := dict "k" 1 "K" 1 "M" 2 "G" 3 "T" 4 -}}
{{- range until (get $powers (regexFind "[kKMGT]" .) | int) -}}
{{- $number = mul $number $base -}}
{{- end -}}
{{- $number -}}
{{- end -}}

{{- define "aqueduct.etcdArgs" -}}
{{- with .Values.etcd }}
{{- if .deploy.enabled }}
{{- $members := list }}
{{- range $idx := until (int .deploy.replicas) }}
{{- $members = append $members (printf "http://%s:2379" (include "aqueduct.etcdHost" (list $ $idx))) }}
{{- end }}
- --etcd={{ join "," $members }}
{{- else }}
- --etcd={{ join "," .endpoints }}
{{- end }}
- --etcd-prefix={{ default (printf "/aqueduct/%s/%s" $.Release.Namespace $.Release.Name) .prefix }}
- --etcd-ttl-s={{ int .ttlSeconds }}
{{- if .tlsSecret }}
- --etcd-tls-ca=/etc/aqueduct/etcd-tls/ca.crt
{{- if .tlsClient }}
- --etcd-tls-cert=/etc/aqueduct/etcd-tls/tls.crt
- --etcd-tls-key=/etc/aqueduct/etcd-tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "aqueduct.etcdHost" -}}
{{- $root := index . 0 -}}
{{- $name := include "aqueduct.etcd" $root -}}
{{ $name }}-{{ index . 1 }}.{{ $name }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}

{{/* Whether coordinators are several, that keep one journal. */}}
{{- define "aqueduct.isGroup" -}}
{{- if gt (int .Values.coordinator.replicas) 1 }}true{{ end -}}
{{- end -}}

{{- define "aqueduct.coordinatorHost" -}}
{{- $root := index . 0 -}}
{{ index . 1 }}.{{ include "aqueduct.coordinator" $root }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}

{{- define "aqueduct.clusterTlsArgs" -}}
{{- if .Values.tls.cluster.enabled }}
- --cluster-tls-cert=/etc/aqueduct/cluster-tls/tls.crt
- --cluster-tls-key=/etc/aqueduct/cluster-tls/tls.key
- --cluster-tls-ca=/etc/aqueduct/cluster-tls/ca.crt
{{- end }}
{{- end -}}

{{- define "aqueduct.scheme" -}}{{ ternary "https" "http" .Values.tls.cluster.enabled }}{{- end -}}

{{- define "aqueduct.coordinatorArgs" -}}
{{- $coordinator := .Values.coordinator -}}
{{- $all := include "aqueduct.everywhere" . -}}
- coordinator
- --model={{ .Values.model.path }}
- --http={{ $all }}:8080
- --grpc={{ $all }}:7070
- --monitor={{ $all }}:9464
- --data-dir=/var/lib/aqueduct/journal
- --grace-s={{ int $coordinator.graceSeconds }}
{{- if include "aqueduct.isGroup" . }}
{{- $members := list }}
{{- range $idx := until (int $coordinator.replicas) }}
{{- $pod := printf "%s-%d" (include "aqueduct.coordinator" $) $idx }}
{{- $members = append $members (printf "%s=%s://%s:7072" $pod (include "aqueduct.scheme" $) (include "aqueduct.coordinatorHost" (list $ $pod))) }}
{{- end }}
{{- $own := printf "%s://%s" (ternary "https" "http" .Values.tls.callers.enabled) (include "aqueduct.coordinatorHost" (list . "$(POD_NAME)")) }}
- --id=$(POD_NAME)
- --peers={{ join "," $members }}
- --peer-listen={{ $all }}:7072
- --cluster-token={{ default (printf "%s-%s" .Release.Namespace .Release.Name) $coordinator.groupToken }}
- --advertise-http={{ $own }}:8080
- --advertise-grpc={{ $own }}:7070
{{- end }}
{{- if include "aqueduct.byEtcd" . }}
{{- include "aqueduct.etcdArgs" . }}
{{- else }}
{{- range $name, $_ := include "aqueduct.pools" . | fromYaml }}
{{- $pool := include "aqueduct.pool" (dict "root" $ "name" $name) | fromYaml }}
{{- $worker := include "aqueduct.worker" $ }}
{{- range $idx := until (int $pool.replicas) }}
- --worker={{ include "aqueduct.scheme" $ }}://{{ $worker }}-{{ $name }}-{{ $idx }}.{{ $worker }}.{{ $.Release.Namespace }}.svc.{{ $.Values.clusterDomain }}:7001
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.tls.callers }}
{{- if .enabled }}
- --tls-cert=/etc/aqueduct/tls/tls.crt
- --tls-key=/etc/aqueduct/tls/tls.key
{{- if ne .clientAuth "none" }}
- --tls-ca=/etc/aqueduct/tls/ca.crt
- --tls-client-auth={{ .clientAuth }}
{{- end }}
{{- end }}
{{- end }}
{{- if or .Values.apiKeys.secret .Values.apiKeys.file }}
- --api-keys=/etc/aqueduct/api-keys/keys.json
{{- end }}
{{- include "aqueduct.clusterTlsArgs" . }}
{{- include "aqueduct.options" $coordinator.options }}
{{- end -}}

{{/* How many whole processors a pool's worker asks for, where nothing else tells it how many are its
own: without a limit it would start a thread for each core of the node, and the slowest of those
that take turns on its share would hold up every layer. A limit it sees itself, and a device computes
without threads. */}}
{{- define "aqueduct.threads" -}}
{{- $asked := get (default dict .resources.requests) "cpu" | toString -}}
{{- $limited := hasKey (default dict .resources.limits) "cpu" -}}
{{- if and (not .gpu.count) (not $limited) (regexMatch "^[1-9][0-9]*(000m)?$" $asked) -}}
{{- trimSuffix "000m" $asked -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" . "name" POOL "pool" VALUES) */}}
{{- define "aqueduct.workerArgs" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $worker := include "aqueduct.worker" $root -}}
{{- $all := include "aqueduct.everywhere" $root -}}
- worker
- --model={{ $root.Values.model.path }}
- --listen={{ $all }}:7001
{{- if eq $pool.kind "Deployment" }}
- --advertise={{ include "aqueduct.scheme" $root }}://{{ include "aqueduct.podHost" $root }}:7001
{{- else }}
- --advertise={{ include "aqueduct.scheme" $root }}://$(POD_NAME).{{ $worker }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}:7001
{{- end }}
- --monitor={{ $all }}:9464
- --grace-s={{ int $pool.graceSeconds }}
- --pool-bytes={{ $pool.poolBytes }}
- --snapshot-bytes={{ include "aqueduct.bytes" $pool.snapshots.memory }}
{{- if $pool.snapshots.disk.enabled }}
- --snapshot-dir=/var/lib/aqueduct/snapshots
- --snapshot-disk-bytes={{ include "aqueduct.bytes" $pool.snapshots.disk.bytes }}
{{- end }}
{{- if $pool.gpu.count }}
- --device=cuda:0
- --link-nccl={{ $pool.gpu.nccl }}
{{- else }}
- --device=cpu
{{- end }}
{{- if include "aqueduct.byEtcd" $root }}
{{- include "aqueduct.etcdArgs" $root }}
{{- end }}
{{- include "aqueduct.clusterTlsArgs" $root }}
{{- if not (hasKey $pool.options "threads") }}
{{- with include "aqueduct.threads" $pool }}
- --threads={{ . }}
{{- end }}
{{- end }}
{{- include "aqueduct.options" $pool.options }}
{{- end -}}
