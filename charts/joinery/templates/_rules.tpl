{{/* The jobs' resources, from the definitions in crds/: [streamjoins, ...] with a suffix. */}}
{{- define "joinery.jobs" -}}
{{- $root := index . 0 }}{{- $suffix := index . 1 }}
{{- $plurals := list }}
{{- range $path, $_ := $root.Files.Glob "files/crds/*.yaml" }}
{{- $plurals = append $plurals (printf "%s%s" ($root.Files.Get $path | fromYaml).spec.names.plural $suffix) }}
{{- end }}
{{- if not $plurals }}
{{- fail "This copy of the chart has no files/crds/*.yaml, so it would install an operator without definitions and without permissions. Whatever copied the chart left them out: install the chart of a release, joinery-VERSION.tgz" }}
{{- end }}
{{- printf "[%s]" (join ", " $plurals) }}
{{- end }}

{{/* A Role allows this of its own namespace alone. Its RoleBinding is deleted with the namespace, so the operator has to let its jobs go before. */}}
{{- define "joinery.operator.namespaceRules" -}}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
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
- apiGroups: [joinery.dev]
  resources: [streamjoins, sessionwindows]
  verbs: [create, delete]  # the jobs of a BlueGreenJob
- apiGroups: [""]
  resources: [pods, configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- with .Values.jobPage.ingress }}
{{- if or .enabled .permissions }}
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- end }}
{{- with .Values.jobPage.httpRoute }}
{{- if or .enabled .permissions }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* The uid of this namespace stands for the cluster. */}}
{{- define "joinery.operator.clusterRules" -}}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
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
