{{/* Names and labels. Everything is called after the release; 30 characters leave room for the
rest of the longest name within the 52 that a StatefulSet may have. */}}

{{- define "aqueduct.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "aqueduct.coordinator" -}}{{ include "aqueduct.fullname" . }}-coordinator{{- end -}}
{{- define "aqueduct.worker" -}}{{ include "aqueduct.fullname" . }}-worker{{- end -}}
{{- define "aqueduct.etcd" -}}{{ include "aqueduct.fullname" . }}-etcd{{- end -}}

{{/* What finds all pods of this release, or of one role: (list . "worker"). */}}
{{- define "aqueduct.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "aqueduct.roleSelector" -}}
{{ include "aqueduct.selector" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "aqueduct.labels" -}}
{{ include "aqueduct.roleSelector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- end -}}

{{- define "aqueduct.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "aqueduct.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.serviceAccount.create -}}
{{ include "aqueduct.fullname" $root }}-{{ index . 1 }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* All pools; one called `default` where none is named. */}}
{{- define "aqueduct.pools" -}}
{{- default (dict "default" dict) .Values.pools | toYaml -}}
{{- end -}}

{{/* One pool's values: those of `worker`, and what the pool says instead. */}}
{{- define "aqueduct.pool" -}}
{{- $own := default dict (get .root.Values.pools .name) -}}
{{- $pool := mergeOverwrite (deepCopy .root.Values.worker) $own -}}
{{- /* Where it runs a pool says in full: merged, it could not take back what `worker` asks. */}}
{{- range $field := list "nodeSelector" "affinity" "tolerations" -}}
{{- if hasKey $own $field -}}
{{- $_ := set $pool $field (get $own $field) -}}
{{- end -}}
{{- end -}}
{{- toYaml $pool -}}
{{- end -}}
