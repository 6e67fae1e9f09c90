// Package v20170312 stands for the client of Tencent's cloud, which flanneld has in it for one of its backends. The
// tests use another one, and this is all of the client that flannel names.
package v20170312

import "errors"

var errNoCloud = errors.New("the client of Tencent's cloud is left out")

type Client struct{}

func NewClientWithSecretId(id, key, region string) (*Client, error) { return nil, errNoCloud }

func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errNoCloud
}

func (*Client) CreateRoutes(*RoutesRequest) (any, error) { return nil, errNoCloud }

func (*Client) DeleteRoutes(*RoutesRequest) (any, error) { return nil, errNoCloud }

type Filter struct {
	Name   *string
	Values []*string
}

type DescribeRouteTablesRequest struct{ Filters []*Filter }

func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}

type DescribeRouteTablesResponse struct {
	Response struct{ RouteTableSet []*RouteTable }
}

type RouteTable struct {
	RouteTableId *string
	RouteSet     []*Route
}

type Route struct {
	DestinationCidrBlock, GatewayId, GatewayType, RouteType *string
	Enabled                                                 *bool
	RouteId                                                 *uint64
}

type RoutesRequest struct {
	RouteTableId *string
	Routes       []*Route
}

func NewCreateRoutesRequest() *RoutesRequest { return &RoutesRequest{} }

func NewDeleteRoutesRequest() *RoutesRequest { return &RoutesRequest{} }
