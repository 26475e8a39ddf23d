{{- define "tailspan.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tailspan.selector" -}}
app.kubernetes.io/name: tailspan
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tailspan.labels" -}}
{{ include "tailspan.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
