// The calls of Grafana's Flight SQL data source, which is written with arrow-go; prints one line for each.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

func rows(ctx context.Context, client *flightsql.Client, info *flight.FlightInfo, err error) string {
	if err != nil {
		return "refused: " + err.Error()
	}
	count, found := int64(0), []string{}
	for _, endpoint := range info.Endpoint {
		reader, err := client.DoGet(ctx, endpoint.Ticket)
		if err != nil {
			return "refused: " + err.Error()
		}
		for reader.Next() {
			batch := reader.RecordBatch()
			count += batch.NumRows()
			for column := range batch.Columns() {
				found = append(found, fmt.Sprint(batch.Column(column)))
			}
		}
		if reader.Err() != nil {
			return "refused: " + reader.Err().Error()
		}
		reader.Release()
	}
	return fmt.Sprintf("%d %s", count, strings.Join(found, " "))
}

func main() {
	address := strings.TrimPrefix(os.Getenv("STATFLIGHT_SERVER"), "grpc://")
	client, err := flightsql.NewClient(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if token := os.Getenv("STATFLIGHT_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	show := func(what string, info *flight.FlightInfo, err error) {
		fmt.Println(what+":", strings.ReplaceAll(rows(ctx, client, info, err), "\n", " "))
	}
	for _, statement := range []string{
		"select 1",
		"SELECT captured_at AS time, table_name, row_count FROM stats_all.tables " +
			"WHERE captured_at >= '2026-01-01T00:00:00Z' AND captured_at <= '2027-01-01T00:00:00Z' ORDER BY time",
		"SELECT date_bin(interval '60 second', captured_at, timestamp '1970-01-01T00:00:00Z') AS captured_at_binned, " +
			"max(ndv) AS ndv FROM stats_all.columns GROUP BY 1 ORDER BY 1",
		"SELECT nothing FROM stats.columns",
	} {
		info, err := client.Execute(ctx, statement)
		show(statement, info, err)
	}
	info, err := client.GetTables(ctx, &flightsql.GetTablesOpts{TableTypes: []string{"BASE TABLE", "table"}})
	show("tables", info, err)
	name := "file_columns"
	info, err = client.GetTables(ctx, &flightsql.GetTablesOpts{TableNameFilterPattern: &name, IncludeSchema: true})
	show("columns", info, err)
	info, err = client.GetSqlInfo(ctx, []flightsql.SqlInfo{})
	show("info", info, err)
	prepared, err := client.Prepare(ctx, "SELECT ndv FROM stats.columns WHERE column_name = 'id'")
	if err != nil {
		log.Fatal(err)
	}
	info, err = prepared.Execute(ctx)
	show("prepared", info, err)
	if err := prepared.Close(ctx); err != nil {
		log.Fatal(err)
	}
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("done")
}
