// Program kubeletclient talks to a kubelet plugin as the kubelet does: with grpc-go, the generated clients of
// k8s.io/kubelet and the same dial options. It proves that the Python server speaks what the kubelet understands.
//
// It is started with the path of a registration socket. Every line on stdin is a request, every line on stdout an
// answer, both JSON. The first answer is the plugin's registration.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type claim struct {
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
	Name      string `json:"name"`
}

type request struct {
	// Call is prepare, unprepare, health or notify.
	Call string `json:"call"`
	// Version is v1, v1beta1 or v1alpha1.
	Version string  `json:"version"`
	Claims  []claim `json:"claims"`
	// TimeoutMilliseconds is the deadline of the call.
	TimeoutMilliseconds int `json:"timeoutMilliseconds"`
	// Messages is how many messages of the health stream to read before hanging up.
	Messages   int    `json:"messages"`
	Registered bool   `json:"registered"`
	Error      string `json:"error"`
}

type answer struct {
	Messages []json.RawMessage `json:"messages"`
	Code     string            `json:"code"`
	Error    string            `json:"error"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket string) error {
	ctx := context.Background()
	dialing, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// The kubelet still dials the registration socket in this deprecated way.
	conn, err := grpc.DialContext(dialing, socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}),
	)
	if err != nil {
		return fmt.Errorf("dial %s: %w", socket, err)
	}
	defer conn.Close()
	registrar := registration.NewRegistrationClient(conn)
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info, err := registrar.GetInfo(asking, &registration.InfoRequest{})
	if err != nil {
		return fmt.Errorf("GetInfo: %w", err)
	}
	plugin, err := grpc.NewClient("unix:"+info.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("client of %s: %w", info.Endpoint, err)
	}
	defer plugin.Close()
	reply(answer{Messages: render(info)}, nil)

	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("request %q: %w", lines.Text(), err)
		}
		reply(serve(ctx, registrar, plugin, r))
	}
	return lines.Err()
}

func serve(ctx context.Context, registrar registration.RegistrationClient, plugin *grpc.ClientConn, r request) (answer, error) {
	if r.TimeoutMilliseconds > 0 {
		limited, cancel := context.WithTimeout(ctx, time.Duration(r.TimeoutMilliseconds)*time.Millisecond)
		defer cancel()
		ctx = limited
	}
	var message proto.Message
	var err error
	switch r.Call + " " + r.Version {
	case "prepare v1":
		message, err = drav1.NewDRAPluginClient(plugin).NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: claimsV1(r)})
	case "unprepare v1":
		message, err = drav1.NewDRAPluginClient(plugin).NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: claimsV1(r)})
	case "prepare v1beta1":
		message, err = drav1beta1.NewDRAPluginClient(plugin).NodePrepareResources(ctx, &drav1beta1.NodePrepareResourcesRequest{Claims: claimsV1beta1(r)})
	case "unprepare v1beta1":
		message, err = drav1beta1.NewDRAPluginClient(plugin).NodeUnprepareResources(ctx, &drav1beta1.NodeUnprepareResourcesRequest{Claims: claimsV1beta1(r)})
	case "health v1":
		return watch(ctx, r, func(ctx context.Context) (grpc.ServerStreamingClient[healthv1.NodeWatchResourcesResponse], error) {
			return healthv1.NewDRAResourceHealthClient(plugin).NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
		})
	case "health v1alpha1":
		return watch(ctx, r, func(ctx context.Context) (grpc.ServerStreamingClient[healthv1alpha1.NodeWatchResourcesResponse], error) {
			return healthv1alpha1.NewDRAResourceHealthClient(plugin).NodeWatchResources(ctx, &healthv1alpha1.NodeWatchResourcesRequest{})
		})
	case "notify ":
		message, err = registrar.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: r.Registered, Error: r.Error})
	default:
		return answer{}, fmt.Errorf("unknown call %q", r.Call+" "+r.Version)
	}
	if err != nil {
		return answer{}, err
	}
	return answer{Messages: render(message)}, nil
}

func watch[M any](ctx context.Context, r request, open func(context.Context) (grpc.ServerStreamingClient[M], error)) (answer, error) {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	stream, err := open(ctx)
	if err != nil {
		return answer{}, err
	}
	var a answer
	for len(a.Messages) < r.Messages {
		message, err := stream.Recv()
		if err != nil {
			return a, err
		}
		a.Messages = append(a.Messages, render(any(message).(proto.Message))...)
	}
	return a, nil
}

func claimsV1(r request) (claims []*drav1.Claim) {
	for _, c := range r.Claims {
		claims = append(claims, &drav1.Claim{Namespace: c.Namespace, Uid: c.UID, Name: c.Name})
	}
	return claims
}

func claimsV1beta1(r request) (claims []*drav1beta1.Claim) {
	for _, c := range r.Claims {
		claims = append(claims, &drav1beta1.Claim{Namespace: c.Namespace, Uid: c.UID, Name: c.Name})
	}
	return claims
}

func render(message proto.Message) []json.RawMessage {
	raw, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		panic(err)
	}
	return []json.RawMessage{raw}
}

func reply(a answer, err error) {
	a.Code = status.Code(err).String()
	if err != nil {
		a.Error = status.Convert(err).Message()
	}
	raw, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(raw))
}
