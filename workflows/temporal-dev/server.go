package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	sqlitestore "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
)

const (
	store   = "sqlite"
	cell    = "active" // name of the only cluster
	loop    = "127.0.0.1"
	started = 30 * time.Second
)

// newServer returns a server that is not started yet, with its database and its
// namespaces in place.
func newServer(c *settings) (temporal.Server, error) {
	attributes := map[string]enums.IndexedValueType{}
	for name, kind := range c.attributes {
		t, err := enums.IndexedValueTypeFromString(kind)
		if err != nil {
			return nil, fmt.Errorf("--search-attribute %s: no type %q; there are Bool, Datetime, Double, Int, Keyword, KeywordList, Text", name, kind)
		}
		attributes[name] = t
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	db := &config.SQL{PluginName: sqlitestore.PluginName, ConnectAttributes: map[string]string{}}
	if c.file == "" {
		db.DatabaseName = "coppice-" + strconv.Itoa(os.Getpid())
		db.ConnectAttributes["mode"], db.ConnectAttributes["cache"] = "memory", "shared"
	} else {
		db.DatabaseName = c.file
		db.ConnectAttributes["mode"] = "rwc"
		db.ConnectAttributes["journal_mode"] = "wal"
		db.ConnectAttributes["synchronous"] = "2" // full: what was answered is on disk
		switch st, err := os.Stat(c.file); {
		case os.IsNotExist(err) || err == nil && st.Size() == 0:
			if err := makeFile(c.file, db); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		}
	}
	cfg := configOf(c, db, ports)
	var spaces []*sqlite.NamespaceConfig
	for _, name := range c.namespaces {
		ns, err := sqlite.NewNamespaceConfig(cell, name, false, attributes)
		if err != nil {
			return nil, fmt.Errorf("namespace %s: %w", name, err)
		}
		spaces = append(spaces, ns)
	}
	if err := sqlite.CreateNamespaces(db, spaces...); err != nil {
		return nil, fmt.Errorf("the namespaces cannot be made: %w", err)
	}
	authorizer, err := authorization.GetAuthorizerFromConfig(&cfg.Global.Authorization)
	if err != nil {
		return nil, err
	}
	logger := c.logger()
	claims, err := authorization.GetClaimMapperFromConfig(&cfg.Global.Authorization, logger)
	if err != nil {
		return nil, err
	}
	dynamic := dynamicconfig.StaticClient{}
	for k, v := range c.dynamic {
		dynamic[dynamicconfig.MakeKey(k)] = v
	}
	// The hosts are known: no gossip among four services of one process, and a
	// start after kill -9 does not wait for a member that is dead.
	hosts := map[primitives.ServiceName]static.Hosts{}
	for name, svc := range cfg.Services {
		addr := net.JoinHostPort(loop, strconv.Itoa(svc.RPC.GRPCPort))
		hosts[primitives.ServiceName(name)] = static.Hosts{All: []string{addr}, Self: addr}
	}
	s, err := temporal.NewServer(
		temporal.WithConfig(cfg),
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithStaticHosts(hosts),
		temporal.WithLogger(logger),
		temporal.WithAuthorizer(authorizer),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claims }),
		temporal.WithDynamicConfigClient(dynamic),
	)
	if err != nil {
		return nil, fmt.Errorf("the server cannot be put together: %w", err)
	}
	return s, nil
}

// makeFile makes the database under another name and renames it, so that a
// process killed meanwhile leaves no half of one.
func makeFile(path string, db *config.SQL) error {
	half := *db
	half.DatabaseName = path + ".new"
	half.ConnectAttributes = map[string]string{"mode": "rwc"}
	if err := os.Remove(half.DatabaseName); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := sqlite.SetupSchema(&half); err != nil {
		return fmt.Errorf("the database %s cannot be made: %w", path, err)
	}
	return os.Rename(half.DatabaseName, path)
}

func configOf(c *settings, db *config.SQL, ports []int) *config.Config {
	service := func(port int) config.Service {
		return config.Service{RPC: config.RPC{GRPCPort: port, BindOnLocalHost: true}}
	}
	front := config.Service{RPC: config.RPC{GRPCPort: c.port, BindOnIP: c.ip}}
	self := net.JoinHostPort(loop, strconv.Itoa(c.port))
	return &config.Config{
		Global: config.Global{
			Membership: config.Membership{MaxJoinDuration: started, BroadcastAddress: loop},
		},
		Persistence: config.Persistence{
			DefaultStore: store, VisibilityStore: store,
			NumHistoryShards: 1, // a file written by one process gains nothing by more
			DataStores:       map[string]config.DataStore{store: {SQL: db}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        cell,
			CurrentClusterName:       cell,
			ClusterInformation: map[string]cluster.ClusterInformation{
				cell: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: self},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services: map[string]config.Service{
			"frontend": front,
			"history":  service(ports[0]),
			"matching": service(ports[1]),
			"worker":   service(ports[2]),
		},
		Archival: config.Archival{
			History:    config.HistoryArchival{State: "disabled"},
			Visibility: config.VisibilityArchival{State: "disabled"},
		},
		NamespaceDefaults: config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
			History:    config.HistoryArchivalNamespaceDefaults{State: "disabled"},
			Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
		}},
		PublicClient: config.PublicClient{HostPort: self},
	}
}

// freePorts returns ports that were free a moment ago, for the services that
// only this process talks to.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort(loop, "0"))
		if err != nil {
			return nil, fmt.Errorf("no free port on %s: %w", loop, err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
