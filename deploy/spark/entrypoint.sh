#!/bin/bash
# What a pod runs. Spark on Kubernetes starts the image with the argument `driver`, followed by
# those of spark-submit, or `executor`, and says the rest in variables; another command is run as it
# is (`tamis pipeline run ...`, a shell).
set -euo pipefail
spark=${SPARK_HOME:-/opt/spark}
case "${1:-}" in
    driver)
        shift
        command=("$spark/bin/spark-submit" --deploy-mode client)
        command+=(--conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@")
        ;;
    executor)
        options=()  # one in each of SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
        for ((number = 0; ; number++)); do
            name=SPARK_JAVA_OPT_$number
            [ -n "${!name+set}" ] || break
            options+=("${!name}")
        done
        jars="${SPARK_CONF_DIR:-$spark/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*"
        command=("${JAVA_HOME:+$JAVA_HOME/bin/}java" ${options[@]+"${options[@]}"})
        command+=(-Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$jars")
        command+=(org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend)
        command+=(--driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID")
        command+=(--cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID")
        command+=(--hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME")
        command+=(--resourceProfileId "$SPARK_RESOURCE_PROFILE_ID")
        ;;
    "")
        command=(tamis --help)
        ;;
    *)
        command=("$@")
        ;;
esac
if command -v tini >/dev/null; then  # collects the Python workers that Java leaves behind
    exec tini -s -- "${command[@]}"
fi
exec "${command[@]}"
