{{- define "gpupolicy.labels" -}}
app.kubernetes.io/name: gpupolicy
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: gpupolicy
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- /* What a workload is found by; it never changes between releases. Give a dict of context and component. */ -}}
{{- define "gpupolicy.selector" -}}
app.kubernetes.io/name: gpupolicy
app.kubernetes.io/instance: {{ .context.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* Give a dict of context, component and, where it may differ, tag. */ -}}
{{- define "gpupolicy.image" -}}
{{- $image := .context.Values.image -}}
{{ printf "%s/%s:%s" $image.registry .component (coalesce .tag $image.tag .context.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- define "gpupolicy.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The node's folders of the kubelet that the agent writes to. */ -}}
{{- define "gpupolicy.pluginDirectory" -}}
{{ .Values.agent.hostPaths.kubelet }}/plugins/gpu.gpupolicy.dev
{{- end }}

{{- /* Where the driver of the host stands in the agent: its own place, but / cannot be mounted over the agent's own. */ -}}
{{- define "gpupolicy.driverRoot" -}}
{{- if eq .Values.agent.hostPaths.driver "/" }}/host{{ else }}{{ .Values.agent.hostPaths.driver }}{{ end }}
{{- end }}

{{- /* Labels and annotations of what exists only while the job of cleanup=true runs. */ -}}
{{- define "gpupolicy.cleanupMetadata" -}}
labels:
  {{- include "gpupolicy.labels" . | nindent 2 }}
  app.kubernetes.io/component: cleanup
annotations:
  helm.sh/hook: pre-delete
{{- end }}
