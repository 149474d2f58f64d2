#!/usr/bin/env bash
# A join on a kind cluster, from nothing: cluster, images, Kafka, Postgres, operator, a job that emits rows. `make kind` runs this; run again, it
# rolls out what has changed. Needs Docker, kind, kubectl and helm, 4 CPUs and 8 GiB for Docker. `kind delete cluster --name joinery` removes everything.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=joinery namespace=joinery
node_image=kindest/node:v1.34.0 # the tests' release of Kubernetes
# Docker 29 keeps images with a statement of where they come from, which `docker save` leaves out and `kind load` then misses
# ("content digest ... not found", kubernetes-sigs/kind#3795).
export BUILDX_NO_DEFAULT_ATTESTATIONS=1

for tool in docker kind kubectl helm; do
    command -v "$tool" >/dev/null || { echo "joinery: $tool is missing; make kind needs docker, kind, kubectl and helm" >&2; exit 3; }
done
read -r cpus bytes < <(docker info --format '{{.NCPU}} {{.MemTotal}}' 2>/dev/null) && [ -n "$bytes" ] ||
    { echo "joinery: Docker does not answer; start it, then repeat" >&2; exit 3; }
# A machine of 8 GiB reports a little less.
if [ "$cpus" -lt 4 ] || [ "$bytes" -lt $((7500 << 20)) ]; then
    echo "joinery: Docker has $cpus CPUs and $((bytes >> 20)) MiB, and the job would not be scheduled; give it 4 CPUs and 8 GiB, then repeat" >&2
    exit 3
fi

# No pipe: grep ends at the first line that fits, and kind would fail on the next one.
if grep -qx "$cluster" <<<"$(kind get clusters)"; then
    kind export kubeconfig --name "$cluster" # it may have been made with another KUBECONFIG
else
    kind create cluster --name "$cluster" --image "$node_image" --wait 5m
fi
kubectl() { command kubectl --context "kind-$cluster" "$@"; }

# A tag for each content, so that what runs of an earlier run is replaced where the image has changed, and nowhere else.
build() { # IMAGE: builds and loads it, and prints its tag
    local id
    id=$(docker build --quiet -f "images/$1.Dockerfile" .)
    docker tag "$id" "localhost/joinery-$1:${id#sha256:}"
    kind load docker-image --name "$cluster" "localhost/joinery-$1:${id#sha256:}" >&2
    echo "${id#sha256:}"
}
runtime_tag=$(build runtime)
operator_tag=$(build operator)
# Prints a manifest with that image of the runtime.
with_image() { sed "s|localhost/joinery-runtime:kind|localhost/joinery-runtime:$runtime_tag|" "$1"; }

kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
with_image deploy/kind/parts.yaml | kubectl apply --namespace "$namespace" -f -
helm upgrade --install joinery charts/joinery --kube-context "kind-$cluster" --namespace "$namespace" --wait --timeout 10m \
    --set image.repository=localhost/joinery-operator,image.tag="$operator_tag" \
    --set runtime.image.repository=localhost/joinery-runtime,runtime.image.tag="$runtime_tag" \
    --set demoPostgres.enabled=true,demoPostgres.secretName=joinery-demo-postgres,demoPostgres.image.tag=18.1 \
    --set "drivers.namespaces={$namespace}"
kubectl rollout status --namespace "$namespace" --timeout=10m deployment/kafka deployment/joinery-operator deployment/feeder

rows() { # in the output's table, which the job creates
    kubectl exec --namespace "$namespace" deploy/joinery-demo-postgres -- psql -U joinery -tAc 'select count(*) from paid_orders' 2>/dev/null || echo 0
}
with_image deploy/kind/job.yaml | kubectl apply --namespace "$namespace" -f -
# The job asks for this image, its driver is ready, and it emits rows.
for condition in UpToDate Ready; do
    kubectl wait --namespace "$namespace" --for="condition=$condition" --timeout=10m streamjoin/paid-orders
done
before=$(rows) deadline=$((SECONDS + 300))
until now=$(rows) && [ "$now" -gt "$before" ]; do
    if [ "$SECONDS" -gt "$deadline" ]; then
        echo "joinery: the job is ready, and has emitted no row for 5 minutes" >&2
        kubectl get streamjoin,pods --namespace "$namespace" >&2
        exit 1
    fi
    sleep 2
done

kubectl get streamjoin --namespace "$namespace"
cat <<TEXT

The job runs and emits rows. Look at it:
    kubectl --context kind-$cluster -n $namespace get sj -w
    kubectl --context kind-$cluster -n $namespace exec deploy/joinery-demo-postgres -- \\
        psql -U joinery -c 'select * from paid_orders limit 10'
Remove everything: kind delete cluster --name $cluster
TEXT
