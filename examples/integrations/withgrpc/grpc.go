// Package withgrpc places an order in a gRPC method: Engine.Do around what it
// writes, and the reply is what was frozen.
package withgrpc

//go:generate protoc --go_out=orderpb --go_opt=paths=source_relative --go-grpc_out=orderpb --go-grpc_opt=paths=source_relative orders.proto

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/examples/integrations/withgrpc/orderpb"
	"github.com/unavez/unavez/store/postgres"
)

// New makes the server of the shop. The context ends the upkeep.
func New(ctx context.Context, pool *pgxpool.Pool) (*grpc.Server, error) {
	ledger, err := postgres.New(pool, nil)
	if err != nil {
		return nil, err
	}
	engine, err := unavez.New(ledger, nil) // *unavez.Engine[pgx.Tx], inferred
	if err != nil {
		return nil, err
	}
	go unavez.Upkeep(ctx, ledger, nil) // forgets what is over its retention
	server := grpc.NewServer()
	orderpb.RegisterOrdersServer(server, &orders{engine: engine})
	return server, nil
}

type orders struct {
	orderpb.UnimplementedOrdersServer
	engine *unavez.Engine[pgx.Tx]
}

// Place is one's own method. What it writes commits with its reply.
func (s *orders) Place(ctx context.Context, in *orderpb.PlaceRequest) (*orderpb.PlaceReply, error) {
	op := unavez.Operation{
		Tenant: "acme", // the place of your authentication
		Effect: "order.place.v1",
		Key:    []string{in.GetRequestId()},
		// What makes two requests with one id different. Not the message's bytes:
		// another build may encode the same message differently.
		Payload: fmt.Appendf(nil, "%q %q %d", in.GetCustomer(), in.GetSku(), in.GetQuantity()),
		Wait:    10 * time.Second, // a duplicate waits for the one in flight
	}
	outcome, err := s.engine.Do(ctx, op, func(ctx context.Context, tx pgx.Tx) (unavez.Result, error) {
		reply, err := place(ctx, tx, in)
		if err != nil {
			return unavez.Result{}, err // rolled back, key free
		}
		body, err := proto.Marshal(reply)
		return unavez.Result{Body: body}, err
	})
	if err != nil {
		return nil, answer(err)
	}
	reply := &orderpb.PlaceReply{}
	return reply, proto.Unmarshal(outcome.Result.Body, reply)
}

func place(ctx context.Context, tx pgx.Tx, in *orderpb.PlaceRequest) (*orderpb.PlaceReply, error) {
	out := &orderpb.PlaceReply{Customer: in.GetCustomer(), Sku: in.GetSku(), Quantity: in.GetQuantity()}
	const insert = `insert into orders (customer, sku, quantity) values ($1, $2, $3) returning id`
	if err := tx.QueryRow(ctx, insert, out.Customer, out.Sku, out.Quantity).Scan(&out.Id); err != nil {
		return nil, err
	}
	const take = `update stock set quantity = quantity - $2 where sku = $1 and quantity >= $2`
	taken, err := tx.Exec(ctx, take, out.Sku, out.Quantity)
	if err == nil && taken.RowsAffected() == 0 {
		return nil, status.Error(codes.FailedPrecondition, "sold out")
	}
	return out, err
}

// answer gives an error its gRPC status; one of the method's own has it already.
func answer(err error) error {
	switch code := unavez.CodeOf(err); {
	case status.Code(err) != codes.Unknown:
		return err
	case code == unavez.CodeInvalid, code == unavez.CodeMismatch:
		return status.Error(codes.InvalidArgument, string(code))
	case unavez.SafeToRetry(err):
		return status.Error(codes.Unavailable, string(code)) // again, with the same request_id
	}
	return status.Error(codes.Internal, "internal")
}
