{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.pod" -}}
metadata:
  labels: {{- include "penstock.labels" . | nindent 4 }}
  {{- if and .Values.metricsPort (not .Values.schedule) }}
  annotations:
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ .Values.metricsPort | quote }}
  {{- end }}
spec:
  terminationGracePeriodSeconds: {{ add .Values.stopTimeoutSeconds 30 }}
  {{- if .Values.schedule }}
  restartPolicy: Never
  {{- end }}
  {{- with .Values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- else }}
  automountServiceAccountToken: false
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: pipeline
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - run
        - {{ if .Values.schedule }}--triggered{{ else }}--continuous{{ end }}
        - --stop-timeout={{ .Values.stopTimeoutSeconds }}
        - --log-format=json
        {{- if and .Values.metricsPort (not .Values.schedule) }}
        - --metrics-port={{ .Values.metricsPort }}
        {{- end }}
        {{- with .Values.args }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      env:
        - {name: PENSTOCK_LOCAL_DIR, value: /data}
        {{- with .Values.storage }}
        - {name: PENSTOCK_STORAGE, value: {{ . | quote }}}
        {{- end }}
        {{- range $name, $value := .Values.env }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
      {{- with .Values.secretNames }}
      envFrom:
        {{- range . }}
        - secretRef: {name: {{ . }}}
        {{- end }}
      {{- end }}
      {{- if not .Values.schedule }}
      {{- if .Values.metricsPort }}
      ports:
        - {name: metrics, containerPort: {{ .Values.metricsPort }}}
      {{- end }}
      readinessProbe:
        exec: {command: [penstock, status]}
        periodSeconds: 60
        timeoutSeconds: 20
      {{- end }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if .Values.schedule }}
    - name: data
      persistentVolumeClaim: {claimName: {{ .Release.Name }}}
    {{- end }}
{{- end }}

{{- define "penstock.claim" -}}
accessModes: [{{ .Values.volume.accessMode }}]
{{- with .Values.volume.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .Values.volume.size }}}
{{- end }}
