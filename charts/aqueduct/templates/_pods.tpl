{{/* What the pods of all roles have in common. */}}

{{/* (list . "worker" VALUES): fields of a pod's spec beside its containers and volumes. */}}
{{- define "aqueduct.podSpec" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "aqueduct.serviceAccount" (list $root (index . 1)) }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (dict "keys" LABELS "match" YAML): pods that match are spread as evenly as can be. */}}
{{- define "aqueduct.spread" -}}
{{- $match := .match -}}
topologySpreadConstraints:
{{- range .keys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $match | nindent 8 }}
{{- end }}
{{- end -}}

{{/* (list . VALUES): the environment of every role. */}}
{{- define "aqueduct.environment" -}}
{{- $telemetry := (index . 0).Values.telemetry -}}
{{- $release := (index . 0).Release -}}
- name: AQUEDUCT_LOG
  value: {{ (index . 1).log | quote }}
- name: AQUEDUCT_LOG_FORMAT
  value: {{ $telemetry.logFormat }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- with $telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . }}
- name: OTEL_METRIC_EXPORT_INTERVAL
  value: {{ $telemetry.otlpIntervalMs | int64 | quote }}
# OpenTelemetry's names, and then the two labels by which alerts tell releases apart.
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name={{ $release.Namespace }},k8s.pod.name=$(POD_NAME),service.instance.id=$(POD_NAME),namespace={{ $release.Namespace }},release={{ $release.Name }}
{{- end }}
{{- with (index . 1).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Probes go to the monitor port: plaintext whatever callers and members speak, and free of keys.
The start may take .startupSeconds; a process that hangs is ended after a minute. */}}
{{- define "aqueduct.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: monitor}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ max 1 (div (int .startupSeconds) 5) }}
livenessProbe:
  httpGet: {path: /livez, port: monitor}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: monitor}
  periodSeconds: 3
  timeoutSeconds: 3
  failureThreshold: 2
{{- with int .preStopSeconds }}
lifecycle:
  preStop:
    sleep: {seconds: {{ . }}}
{{- end }}
{{- end -}}

{{/* preStop, then --grace-s, then the half minute in which doors close, and some for the rest. */}}
{{- define "aqueduct.terminationSeconds" -}}
{{- add (int .preStopSeconds) (int .graceSeconds) 45 -}}
{{- end -}}

{{- define "aqueduct.modelMount" -}}
{{- if ne .Values.model.source "image" }}
- name: model
  mountPath: /model
  readOnly: true
{{- if and (eq .Values.model.source "claim") .Values.model.claim.subPath }}
  subPath: {{ .Values.model.claim.subPath }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "aqueduct.modelVolume" -}}
{{- with .Values.model }}
{{- if eq .source "claim" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ .claim.name }}
    readOnly: true
{{- else if eq .source "hostPath" }}
- name: model
  hostPath:
    path: {{ .hostPath.path }}
    type: Directory
{{- else if eq .source "volume" }}
- name: model
  {{- toYaml .volume | nindent 2 }}
{{- else if eq .source "fetch" }}
- name: model
  {{- /* Not a default of the values: Helm would merge it with another source of the user's. */}}
  {{- default (dict "emptyDir" (dict "sizeLimit" "64Gi")) .fetch.volume | toYaml | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (dict "root" . "args" ARGS): coordinators may want less of a model than workers do. */}}
{{- define "aqueduct.modelFetch" -}}
{{- $values := .root.Values -}}
{{- if eq $values.model.source "fetch" }}
{{- $fetch := set (deepCopy $values.model.fetch) "args" .args }}
initContainers:
  - name: fetch-model
    image: {{ $fetch.image }}
    {{- range $field := list "command" "args" "env" "envFrom" "resources" }}
    {{- with get $fetch $field }}
    {{ $field }}:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    securityContext:
      {{- toYaml $values.containerSecurityContext | nindent 6 }}
    volumeMounts:
      - name: model
        mountPath: /model
      - name: tmp
        mountPath: /tmp
{{- end }}
{{- end -}}

{{/* (dict "root" . "cluster" SECRET): certificates that the role holds. */}}
{{- define "aqueduct.secretMounts" -}}
{{- if .root.Values.tls.cluster.enabled }}
- name: cluster-tls
  mountPath: /etc/aqueduct/cluster-tls
  readOnly: true
{{- end }}
{{- if .root.Values.etcd.tlsSecret }}
- name: etcd-tls
  mountPath: /etc/aqueduct/etcd-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "aqueduct.secretVolumes" -}}
{{- if .root.Values.tls.cluster.enabled }}
- name: cluster-tls
  secret:
    secretName: {{ .cluster }}
    defaultMode: 0440
{{- end }}
{{- with .root.Values.etcd.tlsSecret }}
- name: etcd-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "aqueduct.callersSecret" -}}
{{- default (printf "%s-tls" (include "aqueduct.fullname" .)) .Values.tls.callers.secret -}}
{{- end -}}
{{- define "aqueduct.coordinatorSecret" -}}
{{- default (printf "%s-cluster-tls" (include "aqueduct.coordinator" .)) .Values.tls.cluster.coordinatorSecret -}}
{{- end -}}
{{- define "aqueduct.workerSecret" -}}
{{- default (printf "%s-cluster-tls" (include "aqueduct.worker" .)) .Values.tls.cluster.workerSecret -}}
{{- end -}}
{{- define "aqueduct.keysSecret" -}}
{{- default (printf "%s-api-keys" (include "aqueduct.fullname" .)) .Values.apiKeys.secret -}}
{{- end -}}

{{/* A request for storage, as a volumeClaimTemplate: (dict "name" "size" "class"). */}}
{{- define "aqueduct.claim" -}}
- metadata:
    name: {{ .name }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- if .class }}
    storageClassName: {{ .class }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}
