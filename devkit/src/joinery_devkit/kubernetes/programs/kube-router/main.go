// kube-router's NetworkPolicy controller alone, as K3s runs it: the router and the proxy for services, which nobody here
// wants, would be most of what there is to compile.
package main

import (
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	login, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	must(err)
	client, err := kubernetes.NewForConfig(login)
	must(err)

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	never := make(chan struct{})
	factory.Start(never)
	factory.WaitForCacheSync(never)

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	must(err)
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	must(err)
	follow(pods, controller.PodEventHandler)
	follow(namespaces, controller.NamespaceEventHandler)
	follow(policies, controller.NetworkPolicyEventHandler)

	// The controller waits until somebody takes its heartbeats.
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(beats, never, &running)
}

func follow(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	_, err := informer.AddEventHandler(handler)
	must(err)
}

func must(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}
