// Package check reads the manifests of docs/deploy/kubernetes strictly, with the types
// of the API versions that they name: an unknown field or a value of a wrong type
// is an error. Run it with 'make deploy-check'.
package check

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	"sigs.k8s.io/yaml"
)

// kinds are the types of what may stand in a manifest.
var kinds = map[string]func() any{
	"apps/v1 Deployment":                           func() any { return &appsv1.Deployment{} },
	"v1 Service":                                   func() any { return &corev1.Service{} },
	"policy/v1 PodDisruptionBudget":                func() any { return &policyv1.PodDisruptionBudget{} },
	"inference.networking.k8s.io/v1 InferencePool": func() any { return &poolv1.InferencePool{} },
}

func read(t *testing.T) map[string]any {
	t.Helper()
	files, err := filepath.Glob("../kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string]any{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i, doc := range bytes.Split(data, []byte("\n---\n")) {
			var head struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
			}
			if err := yaml.Unmarshal(doc, &head); err != nil {
				t.Fatalf("%s, document %d: %v", f, i, err)
			}
			make, ok := kinds[head.APIVersion+" "+head.Kind]
			if !ok {
				t.Fatalf("%s, document %d: no type for %s %s", f, i, head.APIVersion, head.Kind)
			}
			v := make()
			if err := yaml.UnmarshalStrict(doc, v); err != nil {
				t.Fatalf("%s, document %d: %v", f, i, err)
			}
			out[head.Kind] = v
		}
	}
	return out
}

// The manifests fit their schemas and each other.
func TestManifests(t *testing.T) {
	docs := read(t)
	d, s, p, b := docs["Deployment"].(*appsv1.Deployment), docs["Service"].(*corev1.Service), docs["InferencePool"].(*poolv1.InferencePool), docs["PodDisruptionBudget"].(*policyv1.PodDisruptionBudget)
	labels := d.Spec.Template.Labels
	selects := func(what string, selector map[string]string) {
		if len(selector) == 0 {
			t.Errorf("%s selects everything", what)
		}
		for k, v := range selector {
			if labels[k] != v {
				t.Errorf("%s selects %s=%s, the pods have %q", what, k, v, labels[k])
			}
		}
	}
	selects("the Deployment", d.Spec.Selector.MatchLabels)
	selects("the Service", s.Spec.Selector)
	selects("the PodDisruptionBudget", b.Spec.Selector.MatchLabels)
	pool := map[string]string{}
	for k, v := range p.Spec.Selector.MatchLabels {
		pool[string(k)] = string(v)
	}
	selects("the InferencePool", pool)

	c := d.Spec.Template.Spec.Containers[0]
	port := c.Ports[0]
	if s.Spec.Ports[0].TargetPort.String() != port.Name || int32(p.Spec.TargetPorts[0].Number) != port.ContainerPort {
		t.Errorf("the container listens on %d, called %s; the Service goes to %s, the pool to %d", port.ContainerPort, port.Name, s.Spec.Ports[0].TargetPort.String(), p.Spec.TargetPorts[0].Number)
	}
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.String() != port.Name {
			t.Errorf("%s probe: %+v", name, probe)
		}
	}
	for _, m := range c.VolumeMounts {
		found := false
		for _, v := range d.Spec.Template.Spec.Volumes {
			found = found || v.Name == m.Name
		}
		if !found {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
}
