{{- define "pointsman.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "pointsman.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "pointsman.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "pointsman.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pointsman.selector" -}}
app.kubernetes.io/name: {{ include "pointsman.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pointsman.labels" -}}
{{ include "pointsman.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pointsman.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pointsman.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Whole seconds of a duration of `pointsman serve`: 30s, 500ms, 2m, 1h, or a number; upwards. */}}
{{- define "pointsman.seconds" -}}
{{- $text := toString . | replace " " "" -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := regexFind "[a-z]*$" $text -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "" 1.0) $unit -}}
{{- mulf $number $factor | ceil | int -}}
{{- end -}}

{{/* The settings file: the values' options, and those that the chart decides. */}}
{{- define "pointsman.settings" -}}
{{- $settings := dict
  "rules" (list "/etc/pointsman/rules")
  "host" "0.0.0.0"
  "http-port" 8000
  "grpc-port" 8001
  "admin-port" 8002
  "data-dir" "/data/pointsman"
-}}
{{- if .Values.admin.keysSecret -}}
{{- $_ := set $settings "admin-host" "0.0.0.0" -}}
{{- $_ := set $settings "admin-keys" (printf "/etc/pointsman/admin/%s" .Values.admin.keysKey) -}}
{{- $_ := set $settings "open-metrics" .Values.admin.openMetrics -}}
{{- end -}}
{{- if .Values.admin.tlsSecret -}}
{{- $_ := set $settings "admin-tls-cert" "/etc/pointsman/admin-tls/tls.crt" -}}
{{- $_ := set $settings "admin-tls-key" "/etc/pointsman/admin-tls/tls.key" -}}
{{- end -}}
{{- if .Values.tls.secret -}}
{{- $_ := set $settings "tls-cert" (list "/etc/pointsman/tls/tls.crt") -}}
{{- $_ := set $settings "tls-key" (list "/etc/pointsman/tls/tls.key") -}}
{{- if .Values.tls.clientCa -}}
{{- $_ := set $settings "tls-client-ca" "/etc/pointsman/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if .Values.sharedSecret.secret -}}
{{- $_ := set $settings "shared-secret-file" (printf "/etc/pointsman/shared/%s" .Values.sharedSecret.key) -}}
{{- end -}}
{{- range $name := keys .Values.settings | sortAlpha -}}
{{- if hasKey $settings (replace "_" "-" $name) -}}
{{- fail (printf "settings.%s: the chart sets it; see the sections admin, tls, redis and sharedSecret of the values" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.settings -}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) -}}
{{- $value = int64 $value -}}{{/* else a large number is written as 6.7e+07 */}}
{{- end -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Where the kubelet asks: at the admin port where it is open, else at the inference port. */}}
{{- define "pointsman.probe" -}}
{{- $root := index . 0 -}}
httpGet:
{{- if $root.Values.admin.keysSecret }}
  port: admin
  path: {{ index . 1 }}
  {{- if $root.Values.admin.tlsSecret }}
  scheme: HTTPS
  {{- end }}
{{- else }}
  port: http
  path: {{ index . 2 }}
  {{- if $root.Values.tls.secret }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{- end -}}

{{/* What cannot work together. */}}
{{- define "pointsman.check" -}}
{{- if and .Values.tls.clientCa (not .Values.tls.secret) -}}
{{- fail "tls.clientCa needs tls.secret" -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not .Values.admin.keysSecret) -}}
{{- fail "tls.clientCa needs admin.keysSecret: the kubelet has no client certificate, and asks the admin port instead" -}}
{{- end -}}
{{- if and .Values.admin.tlsSecret (not .Values.admin.keysSecret) -}}
{{- fail "admin.tlsSecret needs admin.keysSecret: without keys the admin port is reachable within the pod alone" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not (and .Values.admin.keysSecret .Values.admin.openMetrics)) -}}
{{- fail "serviceMonitor needs admin.keysSecret and admin.openMetrics: without them /metrics is reachable within the pod alone" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.admins) (or .Values.serviceMonitor.enabled .Values.keda.enabled) -}}
{{- fail "serviceMonitor and keda need networkPolicy.admins: without a peer there Prometheus does not reach the admin port" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not (or .Values.autoscaling.cpuUtilization .Values.autoscaling.inFlight)) -}}
{{- fail "autoscaling needs cpuUtilization or inFlight" -}}
{{- end -}}
{{- if and .Values.keda.enabled .Values.autoscaling.enabled -}}
{{- fail "keda and autoscaling: enable one of them" -}}
{{- end -}}
{{- if and .Values.keda.enabled (not .Values.admin.keysSecret) -}}
{{- fail "keda needs admin.keysSecret and figures that Prometheus scrapes: without it /metrics is reachable within the pod alone" -}}
{{- end -}}
{{- if and .Values.keda.enabled (not .Values.keda.prometheus) -}}
{{- fail "keda needs keda.prometheus, the URL of Prometheus" -}}
{{- end -}}
{{- end -}}
