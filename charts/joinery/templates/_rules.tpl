{{/* The jobs' resources, from the definitions in crds/: [streamjoins, ...] with a suffix. */}}
{{- define "joinery.jobs" -}}
{{- $root := index . 0 }}{{- $suffix := index . 1 }}
{{- $found := list }}
{{- range $path, $_ := $root.Files.Glob "files/crds/*.yaml" }}
{{- $found = append $found (printf "%s%s" ($root.Files.Get $path | fromYaml).spec.names.plural $suffix) }}
{{- end }}
{{- printf "[%s]" (join ", " $found) }}
{{- end }}

{{/* What the operator does in a namespace whose jobs it runs. It reads no secrets: the kubelet mounts them. */}}
{{- define "joinery.operator.rules" -}}
- apiGroups: [joinery.dev]
  resources: {{ include "joinery.jobs" (list . "") }}
  verbs: [get, list, watch, patch]  # patch: its finalizer, where a job wants its state deleted
- apiGroups: [joinery.dev]
  resources: {{ include "joinery.jobs" (list . "/status") }}
  verbs: [update]
- apiGroups: [joinery.dev]
  resources: {{ include "joinery.jobs" (list . "/finalizers") }}
  verbs: [update]  # to own children, on clusters that check it
- apiGroups: [""]
  resources: [pods, configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies, ingresses]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* What Spark's driver asks of the API in client mode, with the settings that the operator gives it. */}}
{{- define "joinery.drivers.rules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
{{- if .Values.drivers.persistentVolumeClaims }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create]  # they belong to their executor's pod, and go with it
{{- end }}
{{- end }}
