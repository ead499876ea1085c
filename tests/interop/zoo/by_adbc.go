// Asks by the Flight SQL driver of ADBC in Go; the address is STATFLIGHT_SERVER, questions are on standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/apache/arrow-adbc/go/adbc"
	"github.com/apache/arrow-adbc/go/adbc/driver/flightsql"
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

type answer struct {
	Name  string  `json:"name"`
	Rows  [][]any `json:"rows"`
	Error string  `json:"error,omitempty"`
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// bound is a batch of one row: the parameters.
func bound(given []string) arrow.RecordBatch {
	types := map[string]arrow.DataType{
		"text": arrow.BinaryTypes.String, "int": arrow.PrimitiveTypes.Int64, "double": arrow.PrimitiveTypes.Float64}
	fields := make([]arrow.Field, len(given))
	for at, parameter := range given {
		kind, _, _ := strings.Cut(parameter, ":")
		fields[at] = arrow.Field{Name: strconv.Itoa(at), Type: types[kind], Nullable: true}
	}
	rows := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer rows.Release()
	for at, parameter := range given {
		_, value, _ := strings.Cut(parameter, ":")
		check(rows.Field(at).AppendValueFromString(value))
	}
	return rows.NewRecordBatch()
}

func ask(connection adbc.Connection, sql string, given []string) ([][]any, error) {
	ctx := context.Background()
	statement, err := connection.NewStatement()
	check(err)
	defer statement.Close()
	check(statement.SetSqlQuery(sql))
	if len(given) > 0 {
		if err := statement.Prepare(ctx); err != nil {
			return nil, err
		}
		if err := statement.Bind(ctx, bound(given)); err != nil {
			return nil, err
		}
	}
	reader, _, err := statement.ExecuteQuery(ctx)
	if err != nil {
		return nil, err
	}
	defer reader.Release()
	rows := [][]any{}
	for reader.Next() {
		batch := reader.RecordBatch()
		for at := 0; at < int(batch.NumRows()); at++ {
			row := make([]any, batch.NumCols())
			for column := range row {
				row[column] = batch.Column(column).GetOneForMarshal(at)
			}
			rows = append(rows, row)
		}
	}
	return rows, reader.Err()
}

func main() {
	driver := flightsql.NewDriver(memory.DefaultAllocator)
	database, err := driver.NewDatabase(map[string]string{adbc.OptionKeyURI: os.Getenv("STATFLIGHT_SERVER")})
	check(err)
	defer database.Close()
	connection, err := database.Open(context.Background())
	check(err)
	defer connection.Close()
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		parts := strings.Split(lines.Text(), "\t")
		found := answer{Name: parts[0]}
		found.Rows, err = ask(connection, parts[1], parts[2:])
		if err != nil {
			found.Error = err.Error()
		}
		check(out.Encode(found))
	}
	check(lines.Err())
}
