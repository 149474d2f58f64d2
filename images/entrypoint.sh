#!/bin/bash
# What the runtime image starts, under tini: `executor` is what Spark's Kubernetes scheduler asks of an image (the rest
# comes in SPARK_* variables), anything else runs as it is given. Works for any uid, with nothing writable but /tmp.
set -euo pipefail

# Hadoop's login in the JVM wants a name for its uid. One that the image does not know (as OpenShift gives them) is named
# by a library, from a file of our own.
if ! getent passwd "$UID" >/dev/null; then
  export NSS_WRAPPER_PASSWD=${TMPDIR:-/tmp}/passwd-$UID NSS_WRAPPER_GROUP=/etc/group
  echo "joinery:x:$UID:$(id -g)::$HOME:/usr/sbin/nologin" >"$NSS_WRAPPER_PASSWD"
  export LD_PRELOAD=libnss_wrapper.so
fi

if [[ ${1:-} != executor ]]; then
  exec "$@"
fi
shift

# The key with which executors encrypt what they exchange (docs/decisions/0063). Neither Java nor a task needs its secret.
if [[ -v JOINERY_EXCHANGE_SECRET ]]; then
  "${PYSPARK_PYTHON:-python3}" -m joinery_runtime.hosts.exchange_key
  unset JOINERY_EXCHANGE_SECRET
fi

# Spark numbers the Java options from 0 on; one may hold spaces.
java_options=()
for ((number = 0; ; number++)); do
  name=SPARK_JAVA_OPT_$number
  [[ -v $name ]] || break
  java_options+=("${!name}")
done

# A pod template's environment may name another garbage collector than ours, and Java does not start with two.
if [[ "${JAVA_TOOL_OPTIONS-} ${JDK_JAVA_OPTIONS-}" =~ -XX:\+Use[A-Za-z]*GC ]]; then
  for number in "${!java_options[@]}"; do
    [[ ${java_options[number]} != -XX:+UseSerialGC ]] || unset "java_options[number]"
  done
fi

# The jars come before the folders, sorted, and one of them first, as Spark's launcher has it for drivers: otherwise Java
# does not use the image's archive of classes. Spark's jars have no file that a folder of settings has.
class_path=$(LC_ALL=C && printf '%s:' "$SPARK_HOME"/jars/{slf4j-api-*,*}.jar)${SPARK_CONF_DIR:-$SPARK_HOME/conf}
class_path=${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$class_path${HADOOP_CONF_DIR:+:$HADOOP_CONF_DIR}
class_path=$class_path${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}

exec "$JAVA_HOME/bin/java" "${java_options[@]}" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$class_path" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
  --podName "$SPARK_EXECUTOR_POD_NAME" \
  "$@"
