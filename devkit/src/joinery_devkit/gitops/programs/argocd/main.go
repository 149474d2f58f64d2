// Argocd judges objects as ArgoCD's application controller does: their health, by the scripts of argocd-cm, and whether
// they differ from what Git has. It reads a list of {"live", "target", "health"} from standard input.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	argodiff "github.com/argoproj/argo-cd/v3/util/argo/diff"
	"github.com/argoproj/argo-cd/v3/util/argo/normalizers"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/argoproj/gitops-engine/pkg/health"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type question struct {
	Live   map[string]any    `json:"live"`
	Target map[string]any    `json:"target"`
	Health map[string]string `json:"health"`
}

type answer struct {
	Health    *health.HealthStatus `json:"health"`
	Modified  bool                 `json:"modified"`
	Live      json.RawMessage      `json:"live"`
	Predicted json.RawMessage      `json:"predicted"`
}

func judge(q question) (*answer, error) {
	overrides := map[string]v1alpha1.ResourceOverride{}
	for kind, script := range q.Health {
		overrides[kind] = v1alpha1.ResourceOverride{HealthLua: script}
	}
	live, target := &unstructured.Unstructured{Object: q.Live}, &unstructured.Unstructured{Object: q.Target}
	verdict, err := health.GetResourceHealth(live, lua.ResourceHealthOverrides(overrides))
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	config, err := argodiff.NewDiffConfigBuilder().
		WithDiffSettings(nil, overrides, false, normalizers.IgnoreNormalizerOpts{}).
		WithTracking("app.kubernetes.io/instance", string(v1alpha1.TrackingMethodAnnotation)).
		WithNoCache().
		Build()
	if err != nil {
		return nil, fmt.Errorf("settings of the diff: %w", err)
	}
	difference, err := argodiff.StateDiff(live, target, config)
	if err != nil {
		return nil, fmt.Errorf("diff: %w", err)
	}
	return &answer{verdict, difference.Modified, difference.NormalizedLive, difference.PredictedLive}, nil
}

func main() {
	var questions []question
	err := json.NewDecoder(os.Stdin).Decode(&questions)
	answers := make([]*answer, len(questions))
	for i := 0; err == nil && i < len(questions); i++ {
		answers[i], err = judge(questions[i])
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
