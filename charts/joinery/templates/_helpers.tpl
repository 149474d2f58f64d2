{{- define "joinery.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "joinery.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains (include "joinery.name" .) .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "joinery.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "joinery.operator" -}}
{{ include "joinery.fullname" . }}-operator
{{- end }}

{{- define "joinery.operator.serviceAccount" -}}
{{- if .Values.operator.serviceAccount.create }}
{{- default (include "joinery.operator" .) .Values.operator.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.operator.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Labels of every object. Jobs and their children never get them: a tracking label must not be copied down. */}}
{{- define "joinery.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/part-of: joinery
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "joinery.operator.selector" -}}
app.kubernetes.io/name: joinery-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The NetworkPolicyPeers, as JSON, that may reach drivers' status ports: this operator, and whom the values name. With a
     PodMonitor, Ingress or HTTPRoute and nobody named, every pod of the cluster: Prometheus and ingress controllers may run anywhere. */}}
{{- define "joinery.jobs.statusFrom" -}}
{{- $operator := dict
  "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace))
  "podSelector" (dict "matchLabels" (include "joinery.operator.selector" . | fromYaml)) }}
{{- $named := .Values.networkPolicy.jobs.statusFrom }}
{{- if and (or .Values.metrics.podMonitor.enabled .Values.jobPage.ingress.enabled .Values.jobPage.httpRoute.enabled) (not $named) }}
{{- $named = list (dict "namespaceSelector" (dict)) }}
{{- end }}
{{- prepend $named $operator | toJson }}
{{- end }}

{{/* An image from {repository, tag, digest}, the tag where it names none, and the registry where the repository names none:
     its first part is a registry's if it has a dot or a port, or is localhost. */}}
{{- define "joinery.image" -}}
{{- $image := index . 0 -}}
{{- $registry := index . 2 -}}
{{- $first := splitList "/" $image.repository | first -}}
{{- $named := and (contains "/" $image.repository) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- if and $registry (not $named) }}{{ $registry }}/{{ end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end }}

{{/* Where driver pods may run: as JSON, since a template gives text only. */}}
{{- define "joinery.drivers.namespaces" -}}
{{- if .Values.drivers.namespaces }}
{{- toJson .Values.drivers.namespaces }}
{{- else if .Values.watch.namespaces }}
{{- toJson .Values.watch.namespaces }}
{{- else }}
{{- list .Release.Namespace | toJson }}
{{- end }}
{{- end }}

{{/* The defaults of all pods of jobs, as the operator's JSON; empty without any. */}}
{{- define "joinery.drivers.podDefaults" -}}
{{- $defaults := dict }}
{{- range $name := list "labels" "tolerations" "priorityClassName" "imagePullSecrets" "podSecurity" }}
{{- with index $.Values.drivers $name }}
{{- $_ := set $defaults $name . }}
{{- end }}
{{- end }}
{{- with .Values.drivers.proxy }}
{{- if or .http .https }}
{{- $_ := set $defaults "proxy" . }}
{{- end }}
{{- end }}
{{- with .Values.drivers.caBundle }}
{{- if .configMap }}
{{- $_ := set $defaults "caBundle" . }}
{{- end }}
{{- end }}
{{- with $defaults }}{{ toJson . }}{{ end }}
{{- end }}

{{/* What Kubernetes' restricted Pod Security profile asks of a container, and a read-only root beyond it. */}}
{{- define "joinery.container.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "joinery.pod.securityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "joinery.operator.podSecurityContext" -}}
{{- mergeOverwrite (include "joinery.pod.securityContext" . | fromYaml) .Values.operator.podSecurityContext | toYaml }}
{{- end }}

{{/* The labels that the operator gives its driver pods. */}}
{{- define "joinery.drivers.selector" -}}
app.kubernetes.io/managed-by: joinery-operator
joinery.dev/role: driver
{{- end }}
