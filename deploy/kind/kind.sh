#!/usr/bin/env bash
# A join on a kind cluster, from nothing: cluster, images, Kafka, Postgres, operator, a job that runs. `make kind` runs this; it may be
# run again. Needs Docker, kind, kubectl and helm, 4 CPUs and 8 GiB for Docker. `kind delete cluster --name joinery` removes everything.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=joinery namespace=joinery tag=kind
# Docker 29 keeps images with a statement of where they come from, which `docker save` leaves out and `kind load` then misses
# ("content digest ... not found", kubernetes-sigs/kind#3795).
export BUILDX_NO_DEFAULT_ATTESTATIONS=1

for tool in docker kind kubectl helm; do
    command -v "$tool" >/dev/null || { echo "joinery: $tool is missing; make kind needs docker, kind, kubectl and helm" >&2; exit 3; }
done
docker info >/dev/null 2>&1 || { echo "joinery: Docker does not answer; start it, then repeat" >&2; exit 3; }

# No pipe: grep ends at the first line that fits, and kind would fail on the next one.
if grep -qx "$cluster" <<<"$(kind get clusters)"; then
    kind export kubeconfig --name "$cluster" # it may have been made with another KUBECONFIG
else
    kind create cluster --name "$cluster" --wait 5m
fi
kubectl() { command kubectl --context "kind-$cluster" "$@"; }

for image in runtime operator; do
    docker build --quiet -f "images/$image.Dockerfile" -t "localhost/joinery-$image:$tag" .
    kind load docker-image --name "$cluster" "localhost/joinery-$image:$tag"
done

kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
kubectl apply --namespace "$namespace" -f deploy/kind/parts.yaml
helm upgrade --install joinery charts/joinery --kube-context "kind-$cluster" --namespace "$namespace" --wait --timeout 10m \
    --set image.repository=localhost/joinery-operator,image.tag="$tag" \
    --set runtime.image.repository=localhost/joinery-runtime,runtime.image.tag="$tag" \
    --set demoPostgres.enabled=true,demoPostgres.secretName=joinery-demo-postgres \
    --set "drivers.namespaces={$namespace}"
# Images of an earlier run have the same names: what runs of them is restarted.
kubectl rollout restart --namespace "$namespace" deployment/joinery-operator deployment/feeder
kubectl rollout status --namespace "$namespace" --timeout=10m deployment/kafka deployment/joinery-operator deployment/feeder
kubectl apply --namespace "$namespace" -f deploy/kind/job.yaml
kubectl wait --namespace "$namespace" --for=condition=Ready --timeout=10m streamjoin/paid-orders

kubectl get streamjoin --namespace "$namespace"
cat <<TEXT

The job runs. Look at it:
    kubectl --context kind-$cluster -n $namespace get sj -w
    kubectl --context kind-$cluster -n $namespace exec deploy/joinery-demo-postgres -- \\
        psql -U joinery -c 'select * from paid_orders limit 10'
Remove everything: kind delete cluster --name $cluster
TEXT
